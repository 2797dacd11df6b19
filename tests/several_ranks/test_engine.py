"""The engine at every ZeRO stage: NaN and overflow, masters, clipping, and which DeepSpeed settings are refused."""

import math
import re
import sys
from unittest import mock

import pytest
import torch
from several_ranks.toy_training import LEARNING_RATE, batch_of, ds_config, make_engine, train_step, whole_masters
from support.soak import in_soak

import megabert.engine.engine as engine_module
from megabert.engine.deepspeed_parts import LossScaleFloor
from megabert.engine.engine import build_engine
from megabert.foundation.errors import ConfigError
from megabert.optim import StepSettings
from megabert.settings.config.deepspeed import REQUIRED

FLOAT_STAGES = ["zero0", "zero1", "zero2", "zero3", "bf16_zero1"]


@pytest.mark.parametrize(
    ("engine", "optimizer"),
    [
        *((stage, "lamb") for stage in ("zero0", "zero3", "bf16_zero1")),
        ("zero1", "muon"),
        *in_soak(("zero1", "lamb"), ("zero2", "lamb"), ("zero1", "adamw"), ("zero1", "stable_adamw")),
    ],
)
def test_nan_is_named_and_leaves_no_trace(workers, engine, optimizer):
    results = workers(2).run(nan_on_rank_1, engine, optimizer)
    names = [named for named, *_ in results]
    if engine in ("zero2", "zero3"):  # reduced in each micro-step: named by whoever holds the piece
        assert names[0] or names[1]
    else:
        assert names[0] == []
        assert "dense.weight" in names[1]
    assert all(clean == [] for _, clean, _, _ in results)
    losses, undisturbed = results[0][2:]
    assert losses == undisturbed


def nan_on_rank_1(world, engine_name, optimizer):
    engine, clean = (make_engine(world, engine_name, optimizer=optimizer) for _ in range(2))
    train_step(engine, world, 1)
    train_step(clean, world, 1)
    ids, targets = batch_of(2)
    for factor in (1.0, math.nan if world.rank == 1 else 1.0, 1.0):
        engine.backward(engine.forward(ids, targets).loss_sum * factor)
    outcome = engine.step(StepSettings(lr=LEARNING_RATE, bias_step=2))
    assert outcome.grad_norm is None
    clean_before = clean.nonfinite_gradients()
    losses, expected = ([train_step(each, world, step) for step in (3, 4)] for each in (engine, clean))
    return list(outcome.nonfinite), clean_before, losses, expected


@pytest.mark.parametrize("engine", ["zero1", "zero3"])
def test_evaluating_changes_nothing(workers, engine):
    losses, undisturbed, was_training, requires_grad = workers(2).run(evaluate_between, engine)[0]
    assert losses == undisturbed
    assert was_training == [False, True]
    assert not requires_grad


def evaluate_between(world, engine_name):
    engine, clean = make_engine(world, engine_name), make_engine(world, engine_name)
    losses = [train_step(engine, world, 1)]
    modes = []
    with engine.evaluating():
        modes.append(engine.module.training)
        output = engine.forward(*batch_of(9))
    modes.append(engine.module.training)
    losses.append(train_step(engine, world, 2))
    return losses, [train_step(clean, world, step) for step in (1, 2)], modes, output.loss_sum.requires_grad


LISTED = re.findall(r"^ {4,}(?:\* )?(\w+\.\w+)", str(engine_module.__doc__), re.MULTILINE)
"""The calls of a step, as the head of engine.py lists them."""


def test_a_step_makes_the_calls_that_the_engines_docstring_lists_in_their_order(workers):
    assert len(LISTED) > 15
    made = [workers(2).run(calls_of_a_step, stage)[0] for stage in FLOAT_STAGES]
    assert {name for calls in made for name in calls} == set(LISTED)
    for calls in made:
        rest = iter(LISTED)
        assert [name for name in calls if name not in rest] == []


def calls_of_a_step(world, engine_name):
    """The listed calls, each when it is first made, by the names of the classes that define or override the method."""
    engine, calls = make_engine(world, engine_name), {}

    def note(frame, event, _):
        classes = type(frame.f_locals.get("self")).__mro__ if event == "call" else ()
        names = [f"{cls.__name__}.{frame.f_code.co_name}" for cls in classes]
        calls.update(dict.fromkeys(name for name in names if name in LISTED))

    ids, targets = batch_of(1)
    sys.setprofile(note)
    try:
        engine.backward(engine.forward(ids, targets).loss_sum, is_last=True)
        engine.wait_for_backward()
        engine.step(StepSettings(lr=LEARNING_RATE))
    finally:
        sys.setprofile(None)
    return list(calls)


def test_engine_on_a_gpu_loads_no_compiler(workers):
    assert workers(2).run(compile_passes_on_a_gpu) == [0, 0]


def compile_passes_on_a_gpu(world):
    from deepspeed.runtime import engine

    with (
        mock.patch.object(engine, "is_deepcompile_supported", return_value=True),
        mock.patch.object(engine.DeepSpeedEngine, "register_compile_pass") as register,
    ):
        make_engine(world, "bf16_zero1")
    return register.call_count


@pytest.mark.parametrize("engine", ["bf16_zero3", *in_soak("bf16_zero1", "bf16_zero2")])
def test_16_bit_masters_keep_the_digits_of_the_model(workers, engine):
    assert workers(2).run(master_error, engine)[0] == 0.0


def master_error(world, engine_name):
    exact, kept = (whole_masters(make_engine(world, name), world) for name in ("zero1", engine_name))
    return max(float((exact[name] - kept[name]).abs().max()) for name in exact)


@pytest.mark.parametrize("engine", ["fp16_zero2", *in_soak("fp16_zero1", "fp16_zero3")])
def test_fp16_overflow_is_reported_and_lowers_the_scale(workers, engine):
    named, before, after, losses, reference, restored, floor = workers(2).run(fp16_overflow, engine)[0]
    assert named
    assert (before, after) == (256.0, 128.0)
    assert losses == pytest.approx(reference, rel=5e-3)
    assert restored == after
    assert "gradients overflow even at the smallest loss scale, 1," in floor


def fp16_overflow(world, engine_name):
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    with (
        mock.patch.object(accelerator, "is_fp16_supported", return_value=True),
        mock.patch.object(accelerator, "supported_dtypes", return_value=dtypes),
    ):
        engine, other = make_engine(world, engine_name), make_engine(world, engine_name)
    losses = [train_step(engine, world, step) for step in (1, 2)]
    before = engine.scale.value
    ids, targets = batch_of(3)
    engine.backward(engine.forward(ids, targets).loss_sum * 1e6)
    named = any(world.gather(bool(engine.nonfinite_gradients())))
    engine.discard_gradients()
    after = engine.scale.value
    losses += [train_step(engine, world, step) for step in (3, 4)]
    reference = make_engine(world, "zero1")
    other.load_state({"loss_scaler": {**engine.state()["loss_scaler"], "cur_scale": after}})
    restored = other.scale.value
    expected = [train_step(reference, world, step) for step in (1, 2, 3, 4)]
    with pytest.raises(LossScaleFloor) as floor:
        [other.discard_gradients() for _ in range(20)]
    return named, before, after, losses, expected, restored, str(floor.value)


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_required_key_is_refused(key):
    config = ds_config(1, "fp32")
    section, _, name = key.rpartition(".")
    del (config[section] if section else config)[name]
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        build_engine(None, None, config, None)


def test_16_bits_on_stage_0_is_refused():
    with pytest.raises(ConfigError, match="stage 1"):
        build_engine(None, None, ds_config(0, "bf16"), None)
