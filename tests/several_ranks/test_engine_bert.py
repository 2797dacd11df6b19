"""The real models in the engine: dropout on, tied decoder, dataclass output, an empty micro-batch at the very start."""

import functools
from collections import Counter
from unittest import mock

import pytest
import torch
from several_ranks.toy_training import ENGINES, ds_config, gather_whole
from support.soak import in_soak
from support.tiny_models import tiny_config

from megabert.data.batch import MicroBatch
from megabert.engine import zero_stages
from megabert.engine.engine import build_engine
from megabert.models.bert import terms_of
from megabert.models.build import build_model, initialize
from megabert.models.layers import Dense
from megabert.ops import fp8
from megabert.optim import StepSettings, build_optimizer
from megabert.settings.config.run import OptimizerConfig
from megabert.training.step import weighted_loss

SIZES = {"vocab_size": 300, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
PAIR = SIZES | {"embedding_size": 24, "generator_size": 0.5}
MODELS = {
    "bert": tiny_config(**SIZES),
    "albert": tiny_config("albert", **SIZES, embedding_size=24),
    "electra": tiny_config("electra", **PAIR),
    "deberta-v3": tiny_config("deberta-v3", **PAIR, generator_layers=1, position_buckets=8),
    "modernbert": tiny_config("modernbert", **SIZES, local_attention=6, mlp_dropout=0.1),
}
INSTANCES = 5


@pytest.fixture(scope="module")
def unsharded(workers):
    return functools.cache(lambda family: workers(2).run(train, family, "zero0", False)[0])


@pytest.mark.parametrize(
    ("family", "engine", "recompute"),
    [
        ("bert", "zero1", False),
        ("bert", "bf16_zero1", False),
        ("albert", "zero2", True),
        ("deberta-v3", "zero3", True),
        ("modernbert", "zero3", False),
        *in_soak(*(("bert", engine, recompute) for engine in ("zero2", "zero3") for recompute in (False, True))),
        *in_soak(("albert", "zero3", False), ("electra", "zero2", False), ("electra", "zero3", True)),
        *in_soak(("deberta-v3", "zero2", False), ("modernbert", "zero2", False), ("modernbert", "zero3", True)),
    ],
)
def test_every_stage_trains_the_same_model(workers, unsharded, family, engine, recompute):
    losses, weights = unsharded(family)
    actual, actual_weights = workers(2).run(train, family, engine, recompute)[0]
    tolerance = 2e-2 if engine.startswith("bf16") else 1e-5
    assert actual == pytest.approx(losses, rel=tolerance)
    for name, expected in weights.items():
        assert (actual_weights[name] - expected).norm() <= tolerance * 10 * expected.norm() + 1e-6, name


@pytest.mark.parametrize(
    ("family", "engine", "recompute"),
    [
        ("bert", "fp8_zero3", True),
        *in_soak(("bert", "fp8_zero2", False), ("deberta-v3", "fp8_zero2", True), ("modernbert", "fp8_zero3", False)),
    ],
)
def test_every_stage_multiplies_in_8_bits_alike(workers, unsharded, family, engine, recompute):
    losses, weights = workers(2).run(train, family, "fp8_zero1", False)[0]
    actual, actual_weights = workers(2).run(train, family, engine, recompute)[0]
    assert actual == pytest.approx(losses, rel=1e-5)
    assert actual == pytest.approx(unsharded(family)[0], rel=1e-3)
    for name, expected in weights.items():
        assert (actual_weights[name] - expected).norm() <= 0.2 * expected.norm() + 1e-6, name


@pytest.mark.parametrize("stage", [1, *in_soak(2)])
def test_a_weight_is_cast_once_per_update_and_anew_when_the_masters_have_changed(workers, stage):
    losses, casts = workers(2).run(train_with_casts, stage, True)[0]
    assert casts == 2 * [Counter(dict.fromkeys(casts[0], 2))] + [Counter(dict.fromkeys(casts[0], 1))]
    assert len(casts[0]) == 8, "four matrices in each of two layers, for the output and transposed"
    same_losses, casts = workers(2).run(train_with_casts, stage, False)[0]
    assert set(casts[0].values()) == {8}, "once in each of four micro-steps"
    assert losses == same_losses


def train_with_casts(world, stage, keeps):
    """Return losses, and how often weights were cast in two updates and in a forward pass with halved masters."""
    model = build_model(MODELS["bert"], in_fp8=True)
    initialize(model, 3)
    names = {id(module): name for name, module in model.named_modules() if isinstance(module, Dense)}
    losses, casts, cast_factor = [], [], fp8.cast_factor

    def counted(rows, *dtype):
        for module in model.modules():
            if id(module) in names and module.weight.data_ptr() == rows.data_ptr():
                casts[-1][names[id(module)]] += 1
        return cast_factor(rows, *dtype)

    keep = fp8.reset_casts if keeps else lambda weight: None
    with mock.patch.object(fp8, "cast_factor", counted), mock.patch.object(zero_stages, "reset_casts", keep):
        engine = build_engine(
            model, build_optimizer(model.named_parameters(), OptimizerConfig()), ds_config(stage, "bf16"), world
        )
        for step in range(1, 4):
            casts.append(Counter())
            for micro_step in range(4 if step < 3 else 1):
                output = engine.forward(micro_batch(step, (micro_step,)))
                losses.append(float(output.mlm_loss_sum.detach()))
                if step < 3:
                    engine.backward(output.mlm_loss_sum + output.nsp_loss_sum, is_last=micro_step == 3)
            if step < 3:
                engine.step(StepSettings(lr=1e-2, bias_step=step))
            for fragment in engine.fragments if step == 2 else []:
                fragment.view().mul_(0.5)
            engine.refresh()
    return losses, casts


def train(world, family, engine_name, recompute):
    stage, precision = ENGINES[engine_name.replace("fp8", "bf16")]
    model = build_model(MODELS[family], in_fp8="fp8" in engine_name, activation_checkpointing=recompute)
    initialize(model, 3)
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig())
    engine = build_engine(model, optimizer, ds_config(stage, precision), world)
    losses, terms = [], terms_of(model)
    counts = {"masked": 3 * INSTANCES, "instances": INSTANCES, "tokens": 110}
    for step in range(1, 4):
        total = 0.0
        # Micro-steps x ranks; rank 1 begins with nothing.
        for shares in (((0, 1, 2), ()), ((), (3,)), ((4,), ())):
            output = engine.forward(micro_batch(step, shares[world.rank]))
            loss = weighted_loss(output, terms, counts=counts, world_size=world.size)
            engine.backward(loss, is_last=shares == ((4,), ()))
            total += float(loss.detach()) / world.size
        assert engine.step(StepSettings(lr=1e-2, bias_step=step)).grad_norm is not None
        losses.append(sum(world.gather(total)))
    return losses, gather_whole(engine, world, lambda fragment: fragment.view())


def micro_batch(step: int, instances: tuple[int, ...]) -> MicroBatch:
    """The same instances whatever the packing: tokens are keyed by (step, instance)."""
    rows = [torch.Generator().manual_seed(100 * step + instance) for instance in instances]
    lengths = [12 + 5 * instance for instance in instances]
    ids = [torch.randint(0, 300, (n,), generator=row) for n, row in zip(lengths, rows, strict=True)] or [torch.zeros(1)]
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    masked = [start + offset for start in starts for offset in (2, 5, 7)] or [0]
    return MicroBatch(
        input_ids_T=torch.cat(ids).long(),
        position_ids_T=torch.cat([torch.arange(len(row)) for row in ids]),
        segment_ids_T=torch.cat([(torch.arange(len(row)) > 5).long() for row in ids]),
        cu_seqlens=torch.tensor([0, *starts[1:], sum(lengths)], dtype=torch.int32),
        masked_positions_M=torch.tensor(masked),
        masked_ids_M=torch.tensor([7] * len(masked) if instances else [-100]),
        next_sentence_label_B=torch.tensor([instance % 2 for instance in instances] or [-100]),
        instance_seeds_B=torch.tensor([31 * step + instance for instance in instances] or [0], dtype=torch.int32),
        max_seqlen=max(lengths, default=1),
        num_tokens=sum(lengths),
        num_masked=3 * len(instances),
        num_instances=len(instances),
    )
