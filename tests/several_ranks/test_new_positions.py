"""Rows of a table filled from its trained rows, on every ZeRO stage, with moments and average."""

import pytest
import torch
from several_ranks.toy_training import VOCABULARY, gather_whole, loss_of, make_engine, train_step
from support.soak import in_soak

from megabert.engine.weight_average import WeightAverage
from megabert.settings.config.loading import load_run_config
from megabert.training.new_positions import fill_new_positions, tile_rows

TABLE, WIDTH = "embedding.weight", 31
STAGES = [("zero0", 2, "adamw"), ("zero3", 3, "adamw"), ("bf16_zero1", 2, "adamw")]
STAGES += in_soak(("zero1", 3, "lamb"), ("zero2", 2, "lamb"), ("bf16_zero3", 2, "lamb"))


@pytest.mark.parametrize(("engine", "world_size", "optimizer"), STAGES)
def test_new_rows_are_copies_of_the_inner_trained_rows(workers, engine, world_size, optimizer):
    before, after, is_refreshed = workers(world_size).run(tile, engine, optimizer, 7, 39)[0]
    assert is_refreshed, "the model's weights are the masters'"
    sources = [*range(7), *(1 + row % 5 for row in range(39 - 7)), *range(39, VOCABULARY)]
    assert sources[5:14] == [5, 6, 1, 2, 3, 4, 5, 1, 2]
    for kind, tensors in before.items():
        for name, old in tensors.items():
            expected = old.view(VOCABULARY, WIDTH)[sources].view(-1) if name == TABLE else old
            assert torch.equal(after[kind][name], expected), f"{kind} of {name}"
        assert tensors[TABLE].any(), "there is something to copy"


@pytest.mark.parametrize(("num_trained", "stop"), [(3, 9), (50, 51), (200, VOCABULARY)])
def test_any_number_of_rows_is_filled(workers, num_trained, stop):
    before, after, _ = workers(3).run(tile, "zero1", "lamb", num_trained, stop)[0]
    old, new = (kinds["exp_avg_sq"][TABLE].view(VOCABULARY, WIDTH) for kinds in (before, after))
    inner = old[1 : num_trained - 1]
    assert torch.equal(new[num_trained:stop], inner.repeat(stop, 1)[: stop - num_trained])
    assert torch.equal(new[:num_trained], old[:num_trained])
    assert torch.equal(new[stop:], old[stop:])


@pytest.mark.parametrize("flags", [{}, {"init_from": "runs/base", "phases": {"1": {"new_positions": "tile"}}}])
def test_nothing_is_filled_if_no_row_is_new_or_none_is_to_be(flags):
    fill_new_positions(None, None, load_run_config("debug", flags=flags), [(None, None)])  # looks at neither


def tile(world, name, optimizer, num_trained, stop):
    engine = make_engine(world, name, optimizer=optimizer)
    engine.average = WeightAverage(engine.fragments, 0.5, engine.refresh)
    for step in (1, 2):
        train_step(engine, world, step)
        engine.average.update(step)
    before, old_loss = whole_tensors(engine, world), loss_of(engine)
    tile_rows(engine, world, TABLE, num_trained=num_trained, stop=stop)
    loss = loss_of(engine)
    engine.refresh()
    return before, whole_tensors(engine, world), old_loss != loss == loss_of(engine)


def whole_tensors(engine, world):
    kinds = {"master": lambda fragment: fragment.view(), "average": lambda f: f.view(engine.average.of(f.flat))}
    for index, kind in enumerate(engine.optimizer.state_names):
        kinds[kind] = lambda fragment, index=index: fragment.view(engine.optimizer.moments(fragment.flat)[index])
    return {kind: gather_whole(engine, world, values_of) for kind, values_of in kinds.items()}
