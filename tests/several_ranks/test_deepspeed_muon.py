"""DeepSpeed's own Muon against ours: with clipping it is another rule on another engine, so it is not used."""

import importlib.metadata
from unittest import mock

import pytest
import torch
from several_ranks.toy_training import LEARNING_RATE, Toy, batch_of, make_engine, train_step, whole_masters
from torch import nn

MATRICES = ("dense.weight", "out.weight")
"""What both orthogonalise: DeepSpeed goes by name and leaves out whatever is called an embedding."""


class LossOfToy(nn.Module):
    """A toy whose output is its mean loss, as DeepSpeed's documented loop has it."""

    def __init__(self) -> None:
        super().__init__()
        self.toy = Toy()

    def forward(self, ids, targets):
        return self.toy(ids, targets).loss_sum / targets.numel()


def test_deepspeeds_muon_clips_the_update_on_one_engine_and_the_gradient_on_the_other(workers):
    assert importlib.metadata.version("deepspeed") == "0.19.8"
    ours, theirs = workers(2).run(first_updates)[0]
    for name in MATRICES:
        sizes = {key: float(updates[name].norm() / ours[name].norm()) for key, updates in theirs.items()}
        differences = {key: float((u[name] - ours[name]).norm() / ours[name].norm()) for key, u in theirs.items()}
        # Without clipping both engines do what ours does; 16 bits in Newton-Schulz, and in bf16 in the model.
        assert differences["fp32", 0.0] < 0.04, (name, differences)
        assert differences["bf16", 0.0] < 0.1, (name, differences)
        # Clipped at 1, the raw gradient of BF16_Optimizer gives the same update, ZeRO-1 in fp32 a shorter one.
        assert sizes["bf16", 1.0] == pytest.approx(1, abs=0.1), (name, sizes)
        assert sizes["fp32", 1.0] < 0.5, (name, sizes)


def first_updates(world):
    fields = {"muon_scaling": "original", "muon_dtype": "bf16", "matrices": dict.fromkeys(MATRICES, 1)}
    engine = make_engine(world, "zero1", optimizer="muon", clip=0.0, **fields)
    before = whole_masters(engine, world)
    train_step(engine, world, 1)
    ours = {name: value - before[name] for name, value in whole_masters(engine, world).items()}
    # The toy's weight decay of 0.01, which DeepSpeed is told to leave out.
    ours = {name: update + LEARNING_RATE * 0.01 * before[name] for name, update in ours.items()}
    shapes = {name: parameter.shape for name, parameter in Toy().named_parameters()}
    cells = [(precision, clip) for precision in ("fp32", "bf16") for clip in (0.0, 1.0)]
    theirs = {cell: deepspeeds_update(world, *cell) for cell in cells}
    return {name: ours[name].view(shapes[name]) for name in MATRICES}, theirs


def deepspeeds_update(world, precision, clip):
    import deepspeed.ops.adam
    from deepspeed.utils import safe_get_full_fp32_param

    model = LossOfToy()
    settings = {"lr": LEARNING_RATE, "momentum": 0.95, "weight_decay": 0.0, "ns_method": "standard"}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": clip,
        "optimizer": {"type": "Muon", "params": settings},
        "bf16": {"enabled": precision == "bf16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 1},
    }
    # Its Adam for the other parameters is compiled at first use, for minutes; these are not compared.
    with mock.patch.object(deepspeed.ops.adam, "FusedAdam", lambda groups, **_: torch.optim.AdamW(groups)):
        engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=list(model.parameters()))
    named = {name.removeprefix("toy."): parameter for name, parameter in engine.module.named_parameters()}
    before = {name: safe_get_full_fp32_param(named[name]).double().clone() for name in MATRICES}
    ids, targets = batch_of(1)
    rows = slice(world.rank, None, world.size)
    engine.backward(engine(ids[rows], targets[rows]))
    engine.step()
    return {name: safe_get_full_fp32_param(named[name]).double() - before[name] for name in MATRICES}
