"""Which fields have an effect only beside others: a flag that would change nothing is refused."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from megabert.foundation.errors import ConfigError
from megabert.settings.config.fields import pattern_of
from megabert.settings.config.names import leaf_paths, value_at
from megabert.settings.config.run import LAMB_PASSES, UNCLIPPED


class Need(NamedTuple):
    """The condition under which a field has an effect."""

    path: str
    """Another field; N is the number of the same element."""
    values: tuple[Any, ...] = ()
    """The values of which that field has or lists one, None if it is not set; empty if anything but None will do."""


Needs = Mapping[str, Need]

_MUON_FIELDS = ("momentum", "scaling", "adamw_ratio", "heads", "dtype")
RUN_NEEDS: Needs = {
    "optimizer.lamb_variant": Need("optimizer.name", ("lamb",)),
    "optimizer.clip_both": Need("optimizer.name", tuple(UNCLIPPED)),
    **{f"optimizer.muon_{name}": Need("optimizer.name", ("muon",)) for name in _MUON_FIELDS},
    "ops.lamb": Need("optimizer.name", LAMB_PASSES),
    "rollback.spike_steps": Need("rollback.spike_ratio"),
    "rollback.spike_window": Need("rollback.spike_ratio"),
    "logging.profile_ranks": Need("logging.profile_steps"),
    **{f"logging.tracker_{name}": Need("logging.trackers", ("trackio", "wandb")) for name in ("project", "mode")},
    "model.conv_act": Need("model.conv_kernel_size"),
    **{f"model.{name}": Need("model.generator_size") for name in ("generator_layers", "embedding_sharing")},
    "phases.N.new_positions": Need("init_from", (None,)),  # the source has trained all positions
}
"""Needs of `RunConfig`; others are refused by the configuration itself, in files as well."""

_SPAN_FIELDS = ("language", "doc_stride", "max_query_length", "max_answer_length", "n_best")
WITHOUT_ANSWERS = ("klue_mrc", "squad2")
"""Tasks of fine-tuning whose questions may have no answer."""
FINETUNE_NEEDS: Needs = {
    **{name: Need("kind of task", ("span",)) for name in _SPAN_FIELDS},
    "null_threshold": Need("task", WITHOUT_ANSWERS),
    "pair_column": Need("kind of task", ("sequence", "regression", "choice", "span")),
    "held_out": Need("eval_data", (None,)),
}
"""Needs of `FinetuneConfig`."""


def refuse_idle(fields: Mapping[str, Any], values: Mapping[str, Any], needs: Needs) -> None:
    """Refuse fields that have no effect.

    Args:
        fields: The fields that were given, nested.
        values: The resolved configuration as nested values.
        needs: What fields need.

    Raises:
        ConfigError: Naming a flag, its condition, and the value found instead.
    """
    for path in leaf_paths(fields):
        need = needs.get(pattern_of(path))
        if need is None:
            continue
        other, has = _other(path, need, values)
        if not _is_met(need, has):
            words = " or ".join("unset" if value is None else str(value) for value in need.values)
            wanted, shown = f"{other} {words or 'set'}", ", ".join(map(str, has))
            raise ConfigError(
                f"--{path.replace('_', '-')} has no effect: it needs {wanted} (found {shown}). Leave it out, or "
                f"change {other}."
            )


def has_effect(path: str, values: Mapping[str, Any], needs: Needs) -> bool:
    """Return whether a field changes anything, with the other values as they are."""
    need = needs.get(pattern_of(path))
    return need is None or _is_met(need, _other(path, need, values)[1])


def _other(path: str, need: Need, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return the path of the other field, and its values."""
    number = re.search(r"\d+", path)
    other = need.path.replace("N", number[0]) if number else need.path
    found = value_at(values, other)
    return other, found if isinstance(found, list) else [found]


def _is_met(need: Need, has: list[Any]) -> bool:
    return bool(set(need.values) & set(has)) if need.values else has not in ([None], [False], [], [()])
