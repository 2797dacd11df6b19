"""Building an engine: a model and its optimizer in DeepSpeed, by a configuration that was checked."""

from typing import Any

import torch

from megabert.distributed.process_group import World
from megabert.engine.buckets import split_groups
from megabert.engine.deepspeed_parts import wrap
from megabert.engine.engine import Engine
from megabert.foundation.errors import ConfigError
from megabert.ops import fp8
from megabert.ops.matmul_precision import set_matmul_precision
from megabert.optim import BaseOptimizer
from megabert.settings.config.deepspeed import DEFAULT_BUCKET_SIZE, REQUIRED, unsupported, zero_stage_of
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.names import value_at
from megabert.settings.config.run import Precision

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.bfloat16}
"""Dtype of the weights in each precision."""


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Return what ``auto`` means on a device: bf16 on a GPU that has it, else fp16 on a GPU, fp32 on a CPU."""
    if precision != "auto":
        return precision
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported() else "fp16"


def refuse_precision(precision: Precision, device: torch.device, model: ModelConfig | None = None) -> None:
    """Refuse a precision that a device does not have.

    Args:
        precision: The precision; ``auto`` fits every device.
        device: The device, which is asked for products in 8 bits.
        model: The model of such products.

    Raises:
        ConfigError: It is fp16, and there is no GPU, or fp8 on a GPU that does not multiply in 8 bits.
    """
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError("precision=fp16 needs a GPU; on a CPU take fp32, or bf16.")
    if precision == "fp8" and model is not None:
        models = [model] if model.generator_size is None else [model, model.generator()]
        reason = fp8.obstacle(device, [width for one in models for width in (one.hidden_size, one.intermediate_size)])
        if reason:
            raise ConfigError(f"precision=fp8 cannot run on {device}: {reason}. Take bf16.")


def build_engine(model: torch.nn.Module, optimizer: BaseOptimizer, ds_config: dict[str, Any], world: World) -> Engine:
    """Wrap a model and its optimizer in DeepSpeed.

    Args:
        model: A float32 model with the same weights on every rank.
        optimizer: An optimizer over ``model.named_parameters()``. The fragment table is attached to it.
        ds_config: The complete dictionary, as ``config.deepspeed.derive_deepspeed`` makes it: no ``"auto"``, every key
            of ``config.deepspeed.REQUIRED``, ``gradient_clipping`` (0 does not clip), and at most one of
            ``bf16.enabled`` and ``fp16.enabled``.
        world: This rank and the others.

    Raises:
        ConfigError: A required key is missing or says something else, or the combination is not supported.
    """
    _check(ds_config)
    set_matmul_precision()
    stage, sixteen_bits = zero_stage_of(ds_config), _precision(ds_config) != "fp32"
    # In 16 bits DeepSpeed converts the model in place, so the float32 weights are copied first.
    initial = {name: p.detach().float().cpu().clone() for name, p in model.named_parameters()} if sixteen_bits else {}
    # DeepSpeed's throughput timer would synchronise the GPU in every micro-step.
    complete = {**ds_config, "timers": {"throughput": {"enabled": False}}}
    if stage in (1, 2):
        # Overlap is ours, and DeepSpeed would refuse it at stage 1; and a bucket of ours is a parameter group of its.
        complete["zero_optimization"] = {**ds_config["zero_optimization"], "overlap_comm": False}
        size = value_at(ds_config, "zero_optimization.reduce_bucket_size") or DEFAULT_BUCKET_SIZE
        optimizer.param_groups[:] = split_groups(optimizer.param_groups, model, size)
    engine = Engine(wrap(model, optimizer, complete, stage=stage), optimizer, world, ds_config=ds_config)
    for fragment in engine.fragments if sixteen_bits else []:
        # DeepSpeed rounds the weights to 16 bits and copies the masters from those. Give them back the digits.
        values = initial[fragment.parameter].view(-1)[fragment.start : fragment.start + fragment.numel]
        fragment.view().copy_(values)
    engine.module.train()
    return engine


def _check(ds_config: dict[str, Any]) -> None:
    """Refuse a configuration that lacks a required key, or combines what cannot be combined, naming every problem."""
    problems = [
        f"{key}={value_at(ds_config, key)!r} must be {value!r}"
        for key, value in REQUIRED.items()
        if value_at(ds_config, key) != value
    ]
    if "gradient_clipping" not in ds_config:
        problems.append("gradient_clipping is missing: DeepSpeed would clip at 1.0 unasked")
    problems += unsupported(ds_config, _precision(ds_config))
    if problems:
        raise ConfigError("The DeepSpeed configuration does not fit:\n" + "\n".join(f"  {line}" for line in problems))


def _precision(ds_config: dict[str, Any]) -> str:
    return next((name for name in ("bf16", "fp16") if value_at(ds_config, f"{name}.enabled")), "fp32")
