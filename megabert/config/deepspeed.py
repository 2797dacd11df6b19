"""The DeepSpeed dictionary: an engine file, with what the recipe owns filled in.

An engine file owns the ZeRO stage and the buckets. Values that follow from the recipe, or from how megabert drives
DeepSpeed, are ``"auto"`` or absent there. A literal that contradicts them is refused, and so is an unknown key:
DeepSpeed itself silently ignores unknown keys, and reads ``"auto"`` as false.
"""

import json
from collections.abc import Mapping
from typing import Any

from megabert.config.loading import read_mapping, shipped_or_own
from megabert.config.names import did_you_mean
from megabert.config.run import RunConfig
from megabert.errors import ConfigError

DEFAULT_BUCKET_SIZE = 30_000_000
"""Elements of a bucket if the engine file has no ``reduce_bucket_size``: two layers of BERT-Large."""
IN_FLIGHT = 2
"""Buckets of stage 2 that may be under way while another is computed."""

ENGINE_KEYS: dict[str, frozenset[str]] = {
    "": frozenset(
        {
            "zero_optimization",
            "bf16",
            "fp16",
            "data_types",
            "communication_data_type",
            "gradient_clipping",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
            "managed_gradient_accumulation",
            "zero_allow_untested_optimizer",
            "zero_force_ds_cpu_optimizer",
            "steps_per_print",
            "wall_clock_breakdown",
            "memory_breakdown",
            "dump_state",
            "comms_logger",
            "flops_profiler",
            "hierarchy",
        }
    ),
    "zero_optimization": frozenset(
        {
            "stage",
            "contiguous_gradients",
            "reduce_scatter",
            "reduce_bucket_size",
            "allgather_partitions",
            "allgather_bucket_size",
            "overlap_comm",
            "offload_param",
            "offload_optimizer",
            "sub_group_size",
            "round_robin_gradients",
            "stage3_max_live_parameters",
            "stage3_max_reuse_distance",
            "stage3_prefetch_bucket_size",
            "stage3_param_persistence_threshold",
            "stage3_model_persistence_threshold",
            "stage3_module_granularity_threshold",
            "stage3_use_all_reduce_for_fetch_params",
            "stage3_allgather_sequential",
        }
    ),
    "bf16": frozenset({"enabled"}),
    "fp16": frozenset(
        {"enabled", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"}
    ),
    "data_types": frozenset({"grad_accum_dtype"}),
    "hierarchy": frozenset({"enabled", "ranks_per_node", "network_dtype"}),  # megabert's own (engine/two_legs.py)
}

REQUIRED: dict[str, Any] = {
    # megabert counts micro-steps itself: they are packed and uneven, and a step may have any number of them. So
    # DeepSpeed is configured for one micro-step a step, and updates when it is told to.
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "managed_gradient_accumulation": False,
    # LAMB and AdamW are our own, exact on ZeRO's flat shards. DeepSpeed calls every optimizer but its own untested.
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
        precision: ``fp32``, ``bf16`` or ``fp16``.
        max_grad_norm: Global gradient norm to clip at; 0 does not clip.

    Raises:
        ConfigError: Naming every unknown key, contradiction and unsupported combination.
    """
    path = shipped_or_own("engine", name_or_file)
    engine = read_mapping(path, json.loads, "JSON", wanted="an object", remedy="Give a name or a file.")
    problems = _unknown_keys(engine)
    owned = {
        **REQUIRED,
        "gradient_clipping": max_grad_norm,
        "bf16.enabled": precision == "bf16",
        "fp16.enabled": precision == "fp16",
        "steps_per_print": 1_000_000_000,  # never: the run logs for itself
    }
    # What the recipe owns is "auto" or absent in the file; a literal that says the same is harmless.
    for key, value in owned.items():
        literal = value_at(engine, key)
        if literal not in (None, "auto", value):
            problems.append(
                f'{key}={json.dumps(literal)} contradicts {json.dumps(value)} ({_owner(key)}); write "auto"'
            )
        _set(engine, key, value)
    problems += unsupported(engine, precision)
    problems += [f'{key} is "auto", but no recipe field fills it in; give a value' for key in _autos(engine)]
    if problems:
        raise ConfigError("\n".join([f"{path}: {len(problems)} problem(s)", *(f"  {p}" for p in problems)]))
    return engine


def deepspeed_of(config: RunConfig, precision: str) -> dict[str, Any]:
    """Return the complete dictionary for DeepSpeed that a configuration asks for.

    Args:
        config: Its engine file and its clipping norm are used.
        precision: ``fp32``, ``bf16`` or ``fp16``.

    Raises:
        ConfigError: The engine file contradicts the recipe.
    """
    engine = "zero1" if config.engine == "auto" else config.engine
    return derive_deepspeed(engine, precision=precision, max_grad_norm=config.optimizer.max_grad_norm)


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path, or None if there is none."""
    for key in path.split("."):
        values = values.get(key) if isinstance(values, Mapping) else None  # type: ignore[assignment]
    return values


def zero_stage_of(engine: Mapping[str, Any]) -> int:
    """Return the ZeRO stage of a complete dictionary."""
    return int(value_at(engine, "zero_optimization.stage") or 0)


def unsupported(engine: Mapping[str, Any], precision: str) -> list[str]:
    """Return a line with the remedy for each setting that DeepSpeed would accept and megabert does not support."""
    zero = engine.get("zero_optimization", {})
    if not isinstance(zero, Mapping):
        return []
    stage = zero.get("stage", 0)
    problems = []
    if stage not in (0, 1, 2, 3):
        problems.append(f"zero_optimization.stage={json.dumps(stage)}; allowed are 0, 1, 2, 3")
    if stage == 0 and precision != "fp32":
        problems.append(
            f"zero_optimization.stage=0 cannot train in {precision}: DeepSpeed leaves the loss unscaled or refuses. "
            "Use stage 1 (--engine zero1), or precision fp32"
        )
    if zero.get("round_robin_gradients"):
        problems.append(
            "zero_optimization.round_robin_gradients=true misplaces parameters in DeepSpeed's own fragment table; "
            "remove it"
        )
    problems += [
        f"zero_optimization.{key}: offload is not supported; remove it, and take a higher stage for less memory"
        for key in ("offload_param", "offload_optimizer")
        if zero.get(key)
    ]
    return problems + _unsupported_hierarchy(engine.get("hierarchy"), stage)


def _unsupported_hierarchy(hierarchy: Any, stage: Any) -> list[str]:
    if not isinstance(hierarchy, Mapping):
        return []
    enabled, per_node = hierarchy.get("enabled"), hierarchy.get("ranks_per_node")
    dtype = hierarchy.get("network_dtype", "fp32")
    problems = []
    if not isinstance(enabled, bool):
        problems.append(f"hierarchy.enabled={json.dumps(enabled)}; give true or false")
    if per_node is not None and (type(per_node) is not int or per_node < 1):
        problems.append(f"hierarchy.ranks_per_node={json.dumps(per_node)}; give a number of ranks, or leave it out")
    if dtype not in ("fp32", "bf16"):
        problems.append(f"hierarchy.network_dtype={json.dumps(dtype)}; allowed are fp32 and bf16")
    if enabled is True and stage not in (1, 2):
        problems.append(f"hierarchy.enabled=true is for stages 1 and 2, not {stage}; remove it, or take --engine zero1")
    return problems


def _owner(key: str) -> str:
    fields = {"gradient_clipping": "optimizer.max_grad_norm", "bf16.enabled": "precision", "fp16.enabled": "precision"}
    fields |= {"data_types.grad_accum_dtype": "grad_accum_dtype", "communication_data_type": "grad_accum_dtype"}
    return f"the recipe's {fields[key]}" if key in fields else "how megabert drives DeepSpeed"


def _unknown_keys(engine: Mapping[str, Any]) -> list[str]:
    problems = []
    for section, known in ENGINE_KEYS.items():
        values = engine.get(section, {}) if section else engine
        if not isinstance(values, Mapping):
            problems.append(f"{section} must be an object (found {json.dumps(values)})")
            continue
        for key in values:
            if key not in known:
                path = f"{section}.{key}" if section else key
                problems.append(f"{path}: unknown key{did_you_mean(key, sorted(known))}")
    return problems


def _autos(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    paths = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            paths += _autos(value, f"{prefix}{key}.")
        elif value == "auto":
            paths.append(prefix + key)
    return paths


def _set(values: dict[str, Any], path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for section in sections:
        if not isinstance(values.get(section), dict):
            values[section] = {}
        values = values[section]
    values[key] = value
