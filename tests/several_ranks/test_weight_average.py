"""The moving average of the weights: the closed recursion on every ZeRO stage, in checkpoints, and in use."""

from pathlib import Path

import pytest
import torch
from several_ranks.saving import save_checkpoint
from several_ranks.toy_training import gather_whole, loss_of, make_engine, train_step
from support.soak import in_soak

from megabert.checkpoints.loading import find_checkpoint, load_checkpoint, read_masters
from megabert.engine.weight_average import WeightAverage
from megabert.foundation.errors import CheckpointError

DECAY, SAVED_AT, STEPS = 0.6, 5, 8
STAGES = ["zero0", "zero3", "bf16_zero1", *in_soak("zero1", "zero2")]


@pytest.mark.parametrize("engine", STAGES)
def test_average_is_the_recursion_over_whole_weights(workers, engine):
    worst, is_whole = workers(2).run(compare_with_recursion, engine)[0]
    assert is_whole
    assert worst < 1e-6


@pytest.mark.parametrize(("first", "second"), [("zero3", "zero0"), ("zero1", "zero1"), *in_soak(("zero1", "zero3"))])
def test_average_is_resumed_and_bit_for_bit_on_the_same_stage(workers, tmp_path, first, second):
    unbroken = workers(2).run(save_and_continue, first, tmp_path)[0]
    resumed = workers(2).run(resume, second, tmp_path)[0]
    for name, average in unbroken.items():
        tolerance = {"rtol": 0, "atol": 0} if first == second else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(resumed[name], average, **tolerance)
    stored, trained = (read_masters(find_checkpoint(tmp_path), average=is_average) for is_average in (True, False))
    assert stored.keys() == trained.keys()
    assert trained["embedding.weight"].shape == (400, 31)
    assert "decoder.weight" not in trained  # tied
    assert not torch.equal(stored["embedding.weight"], trained["embedding.weight"])


@pytest.mark.parametrize("engine", STAGES)
def test_model_computes_with_the_average_and_gets_its_weights_back(workers, engine):
    as_average, as_loaded, before, after = workers(2).run(use_average, engine)[0]
    assert as_average == as_loaded
    assert before == after
    assert before != as_average


def test_a_run_that_begins_to_average_begins_with_its_weights(workers, tmp_path):
    assert workers(2).run(begin_late, tmp_path)[0]
    with pytest.raises(CheckpointError, match=r"holds no average of the weights, since average\.decay"):
        read_masters(find_checkpoint(tmp_path), average=True)


def test_an_error_under_the_average_begins_no_collective():
    refreshed = []
    average = WeightAverage([], DECAY, lambda: refreshed.append(True))
    with pytest.raises(OSError, match="torn"), average.in_use():
        raise OSError("torn")
    assert refreshed == [True], "once, on entering: the other ranks are elsewhere"


def averaging(world, name, decay=DECAY):
    engine = make_engine(world, name)
    engine.average = WeightAverage(engine.fragments, decay, engine.refresh)
    return engine


def train(engine, world, steps):
    for step in steps:
        train_step(engine, world, step)
        engine.average.update(step)


def whole_average(engine, world):
    return gather_whole(engine, world, lambda fragment: fragment.view(engine.average.of(fragment.flat)))


def compare_with_recursion(world, name):
    engine = averaging(world, name)
    expected = gather_whole(engine, world, lambda fragment: fragment.view())
    for step in range(1, STEPS + 1):
        train(engine, world, [step])
        kept = min(DECAY, (1 + step) / (10 + step))
        masters = gather_whole(engine, world, lambda fragment: fragment.view())
        expected = {key: kept * value + (1 - kept) * masters[key] for key, value in expected.items()}
    averages = whole_average(engine, world)
    worst = max(float((averages[key] - value).abs().max()) for key, value in expected.items())
    return worst, averages.keys() == engine.shapes.keys()


def save_and_continue(world, name, folder: Path):
    engine = averaging(world, name)
    train(engine, world, range(1, SAVED_AT + 1))
    save_checkpoint(folder, SAVED_AT, engine, {"step": SAVED_AT}, world)
    train(engine, world, range(SAVED_AT + 1, STEPS + 1))
    return whole_average(engine, world)


def resume(world, name, folder: Path):
    engine = averaging(world, name)
    load_checkpoint(find_checkpoint(folder), engine, world)
    train(engine, world, range(SAVED_AT + 1, STEPS + 1))
    return whole_average(engine, world)


def use_average(world, name):
    engine = averaging(world, name)
    train(engine, world, range(1, 4))
    before = loss_of(engine)
    with engine.average.in_use():
        as_average = loss_of(engine)
    after = loss_of(engine)
    # The same weights, put there for good.
    for fragment in engine.fragments:
        fragment.view().copy_(fragment.view(engine.average.of(fragment.flat)))
    engine.refresh()
    return as_average, loss_of(engine), before, after


def begin_late(world, folder: Path) -> bool:
    engine = make_engine(world, "zero1")
    for step in range(1, 4):
        train_step(engine, world, step)
    save_checkpoint(folder, 3, engine, {"step": 3}, world)
    later = averaging(world, "zero1")
    load_checkpoint(find_checkpoint(folder), later, world)
    return all(torch.equal(f.view(), f.view(later.average.of(f.flat))) for f in later.fragments)
