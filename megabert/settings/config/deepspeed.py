"""The DeepSpeed dictionary: an engine file, with the recipe's own values filled in.

An engine file owns the ZeRO stage and the buckets. Values that follow from the recipe, or from how megabert drives
DeepSpeed, are ``"auto"`` or absent there. A literal that contradicts them is refused, and so is an unknown key:
DeepSpeed itself silently ignores unknown keys, and reads ``"auto"`` as false.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from megabert.foundation.errors import ConfigError
from megabert.settings.config.loading import read_mapping, shipped_or_own
from megabert.settings.config.names import did_you_mean, leaf_paths, value_at
from megabert.settings.config.run import RunConfig
from megabert.settings.config.yaml_text import read_number

DEFAULT_BUCKET_SIZE = 30_000_000
"""Elements of a bucket if the engine file has no ``reduce_bucket_size``: two layers of BERT-Large."""
IN_FLIGHT = 2
"""Buckets of stage 2 that may be under way while another is computed."""

Elements = Annotated[int, Field(ge=0, le=10**13)]
Bucket = Annotated[int, Field(ge=1, le=10**13)]
Number = Annotated[float, Field(ge=0, le=2**64)]

_KEYS_BY_TYPE: dict[str, dict[Any, str]] = {
    "": {
        dict: "zero_optimization bf16 fp16 data_types",
        bool: "managed_gradient_accumulation zero_allow_untested_optimizer zero_force_ds_cpu_optimizer dump_state",
        Bucket: "train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print",
        Number: "gradient_clipping",
        str: "communication_data_type",
    },
    "zero_optimization": {
        Annotated[int, Field(ge=0, le=3)]: "stage",
        bool: "contiguous_gradients reduce_scatter overlap_comm allgather_partitions "
        "stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential",
        Bucket: "reduce_bucket_size allgather_bucket_size sub_group_size",
        Elements: "stage3_max_live_parameters stage3_max_reuse_distance stage3_prefetch_bucket_size "
        "stage3_module_granularity_threshold stage3_param_persistence_threshold stage3_model_persistence_threshold",
        Any: "offload_param offload_optimizer round_robin_gradients",  # refused if they are on
    },
    "bf16": {bool: "enabled"},
    "fp16": {
        bool: "enabled",
        Annotated[int, Field(ge=0, le=64)]: "initial_scale_power",
        Number: "loss_scale min_loss_scale",
        Annotated[int, Field(ge=1, le=10**6)]: "loss_scale_window hysteresis",
    },
    "data_types": {str: "grad_accum_dtype"},
}
ENGINE_KEYS: dict[str, dict[str, Any]] = {
    section: {key: kind for kind, keys in types.items() for key in keys.split()}
    for section, types in _KEYS_BY_TYPE.items()
}
"""Every key of an engine file, by its section, with the type of its values."""

_MEASUREMENTS = ("comms_logger", "flops_profiler", "memory_breakdown", "wall_clock_breakdown")
"""Keys of what DeepSpeed measures in its own steps and collectives; megabert makes these itself."""

REQUIRED: dict[str, Any] = {
    # megabert counts micro-steps itself: they are packed and uneven, and a step may have any number of them. So
    # DeepSpeed is configured for one micro-step a step, and updates when it is told to.
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "managed_gradient_accumulation": False,
    # All optimizers are our own, exact on ZeRO's flat shards. DeepSpeed calls every optimizer but its own untested.
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    # Both are needed: with the first alone, 256 micro-steps lose 2.5e-3 in BF16_Optimizer.
    "data_types.grad_accum_dtype": "fp32",
    "communication_data_type": "fp32",
}
"""Values that every dictionary has, because of how megabert drives DeepSpeed."""


def derive_deepspeed(name_or_file: str, *, precision: str, max_grad_norm: float) -> dict[str, Any]:
    """Return the complete dictionary for ``deepspeed.initialize``; no ``"auto"`` survives.

    Args:
        name_or_file: Engine file (JSON): one that the package ships, or the user's own.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``fp8``, which is bf16 to DeepSpeed.
        max_grad_norm: Global gradient norm to clip at; 0 does not clip.

    Raises:
        ConfigError: Naming every unknown key, contradiction and unsupported combination.
    """
    path = shipped_or_own("engine", name_or_file)
    # ``5e8``, which DeepSpeed's documentation writes, is a whole number.
    parse = partial(json.loads, parse_float=read_number, object_pairs_hook=_without_twins)
    engine = read_mapping(path, parse, "JSON", remedy="Give a name or a file.")
    problems = [*_misfits(engine)]
    if problems:
        raise _refusal(path, problems)
    owned = {
        **REQUIRED,
        "gradient_clipping": max_grad_norm,
        "bf16.enabled": precision in ("bf16", "fp8"),
        "fp16.enabled": precision == "fp16",
        "steps_per_print": 1_000_000_000,  # never: the run logs for itself
    }
    # The recipe's own values are "auto" or absent in the file; a literal that says the same is harmless.
    for key, value in owned.items():
        literal = value_at(engine, key)
        if literal not in (None, "auto", value):
            problems.append(
                f'{key}={json.dumps(literal)} contradicts {json.dumps(value)} ({_owner(key)}); write "auto"'
            )
        _set(engine, key, value)
    problems += unsupported(engine, precision)
    autos = [path for path in leaf_paths(engine) if value_at(engine, path) == "auto"]
    problems += [f'{path} is "auto", but no recipe field fills it in; give a value' for path in autos]
    if problems:
        raise _refusal(path, problems)
    return engine


def _refusal(path: Path, problems: Sequence[str]) -> ConfigError:
    return ConfigError("\n".join([f"{path}: {len(problems)} problem(s)", *(f"  {problem}" for problem in problems)]))


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is there twice")
    return values


def deepspeed_of(config: RunConfig, precision: str) -> dict[str, Any]:
    """Return the complete dictionary for DeepSpeed that a configuration asks for.

    Args:
        config: Its engine file and its clipping norm are used.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``fp8``, which is bf16 to DeepSpeed.

    Raises:
        ConfigError: The engine file contradicts the recipe.
    """
    engine = "zero1" if config.engine == "auto" else config.engine
    return derive_deepspeed(engine, precision=precision, max_grad_norm=config.optimizer.max_grad_norm)


def zero_stage_of(engine: Mapping[str, Any]) -> int:
    """Return the ZeRO stage of a complete dictionary."""
    return int(value_at(engine, "zero_optimization.stage") or 0)


def unsupported(engine: Mapping[str, Any], precision: str) -> list[str]:
    """Return a line with the remedy for each setting that DeepSpeed would accept and megabert does not support."""
    problems = [*_misfits(engine)]
    if problems:  # whatever else is wrong with such values means little
        return problems
    zero = engine.get("zero_optimization", {})
    stage = zero.get("stage", 0)
    if stage == 0 and precision != "fp32":
        remedy = "Use stage 1 (--engine zero1), or precision fp32"
        why = f"cannot train in {precision}: DeepSpeed leaves the loss unscaled or refuses"
        problems.append(f"zero_optimization.stage=0 {why}. {remedy}")
    if zero.get("round_robin_gradients"):
        why = "misplaces parameters in DeepSpeed's own fragment table; remove it"
        problems.append(f"zero_optimization.round_robin_gradients=true {why}")
    problems += [
        f"zero_optimization.{key}: offload is not supported; remove it, and take a higher stage for less memory"
        for key in ("offload_param", "offload_optimizer")
        if zero.get(key)
    ]
    return problems


def _owner(key: str) -> str:
    fields = {"gradient_clipping": "optimizer.max_grad_norm", "bf16.enabled": "precision", "fp16.enabled": "precision"}
    fields |= {"data_types.grad_accum_dtype": "grad_accum_dtype", "communication_data_type": "grad_accum_dtype"}
    return f"the recipe's {fields[key]}" if key in fields else "how megabert drives DeepSpeed"


def _misfits(engine: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each key that is unknown, and for each value of another type than its key's."""
    for section, types in ENGINE_KEYS.items():
        values = value_at(engine, section) if section else engine
        for key, value in values.items() if isinstance(values, Mapping) else ():
            path = f"{section}.{key}" if section else key
            if path in _MEASUREMENTS:
                yield f"{path}: measures steps that DeepSpeed makes, not megabert's; remove it, and use --profile"
            elif key not in types:
                yield f"{path}: unknown key{did_you_mean(key, sorted(types))}"
            elif value != "auto" or types[key] is dict:  # "auto" is filled in, or refused by its name
                try:
                    TypeAdapter(types[key]).validate_python(value, strict=True)
                except ValidationError as error:
                    yield f"{path}={json.dumps(value)[:100]}: {error.errors()[0]['msg']}"


def _set(values: dict[str, Any], path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for section in sections:
        if not isinstance(values.get(section), dict):
            values[section] = {}
        values = values[section]
    values[key] = value
