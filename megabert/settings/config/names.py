"""Names of fields: the one that a user meant by a mistyped one, and the value at a dotted path of them."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import ArgsKwargs

_NAMES_ELSEWHERE = {
    ("learning_rate",): "lr peak_lr",
    ("global_batch_size",): "batch_size bs train_batch_size gradient_accumulation_steps",
    ("micro_batch_tokens",): "per_device_train_batch_size micro_batch_size",
    ("steps", "epochs"): "max_steps num_steps num_train_steps",
    ("tokens",): "epochs",
    ("epochs", "tokens"): "num_epochs num_train_epochs",
    ("warmup_ratio",): "warmup warmup_steps num_warmup_steps",
    ("decay",): "lr_scheduler lr_scheduler_type",
    ("weight_decay",): "wd",
    ("optimizer.name",): "optim optimizer",
    ("max_grad_norm",): "grad_clip clip",
    ("precision",): "fp8 fp16 bf16 fp32 amp dtype",
    ("hidden_dropout_prob",): "dropout",
    ("activation_checkpointing",): "gradient_checkpointing",
    ("engine",): "deepspeed deepspeed_config zero_stage",
    ("run_dir", "output_dir", "to"): "output",
    ("run_dir", "output", "to"): "output_dir",
    ("output_dir",): "run_dir",
    ("output", "run_dir", "output_dir", "to"): "out",
    ("init_from", "model"): "model_name_or_path pretrained",
    ("init_from",): "model",
    ("run_dir", "output_dir"): "resume resume_from_checkpoint",
    ("data.path", "input"): "data",
    ("data.path", "data", "input"): "data_dir dataset",
    ("data", "input", "data.path"): "train_file",
    ("input", "data.path"): "corpus",
    ("eval_data",): "validation_file",
    ("checkpoint.every_steps",): "save_steps",
    ("logging.every_steps",): "logging_steps",
    ("validation.every_steps", "evaluate_every_steps"): "eval_steps",
    ("keep_last",): "save_total_limit",
    ("max_seq_length", "lengths"): "seq_length seq_len max_seq_len max_length block_size",
    ("lengths",): "max_seq_length",
    ("num_hidden_layers",): "num_layers layers n_layers n_layer",
    ("num_attention_heads",): "num_heads heads n_heads n_head",
    ("hidden_size",): "d_model",
    ("masked_lm_prob",): "mlm_probability",
    ("workers", "ranks"): "num_workers jobs",
    ("gpus", "world_size"): "num_gpus",
    ("uncased",): "lowercase do_lower_case",
}
ALIASES = {name: ours for ours, names in _NAMES_ELSEWHERE.items() for name in names.split()}
"""Names in other programs, each with ours for the same thing in the order of preference."""


def closest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that a mistyped one is likely to mean; None if none is like it."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def named_elsewhere(name: str, known: Sequence[str]) -> str | None:
    """Return the known path that an unknown one means by itself, or by its last part as other programs call it.

    Args:
        name: The unknown path; hyphens and capitals do not matter.
        known: The paths that there are, with underscores.
    """
    plain = name.replace("-", "_").lower()
    last = plain.rpartition(".")[2]
    for wanted in (plain, *ALIASES.get(last, ()), last):
        for path in known:
            if path == wanted or path.endswith(f".{wanted}"):
                return path
    return None


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return ``; did you mean X?`` for the known name that is meant, or the list of known names."""
    meant = named_elsewhere(name, known) or closest(name, known)
    return f"; did you mean {meant}?" if meant else f"; known are {', '.join(sorted(known))}"


def value_at(values: Any, path: str) -> Any:
    """Return the value at a dotted path of keys, and of numbers of elements of lists; None if there is none."""
    for part in path.split("."):
        if isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        else:
            values = values.get(part) if isinstance(values, Mapping) else None
    return values


def given_fields(values: Any) -> dict[str, Any] | None:
    """Return the fields that are given to a validator of mode ``before``; None if pydantic will refuse them.

    The values that a validator returns are checked as Python's own: for a tuple, no list is accepted.
    """
    given = values.kwargs or {} if isinstance(values, ArgsKwargs) else values
    if not isinstance(given, dict):
        return None
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
