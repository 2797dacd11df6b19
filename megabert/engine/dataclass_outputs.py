"""Let ZeRO-3 see the tensors inside a module's dataclass output.

Its hooks fetch a module's partitioned parameters before the backward pass; they hang on the output's tensors, look into
tuples and dicts and pass over anything else. So outputs that are dataclasses travel through DeepSpeed's hooks as dicts.
"""

import dataclasses
from typing import Any

from torch import nn


class _Fields(dict[str, Any]):
    """A dataclass instance taken apart."""

    kind: type


def flatten(module: nn.Module) -> None:
    """Register the hooks that turn dataclass outputs into dicts; call it before ``deepspeed.initialize``."""
    for part in module.modules():
        part.register_forward_hook(_take_apart)


def unflatten(module: nn.Module) -> None:
    """Register the hooks that turn them back; call it after ``deepspeed.initialize``, whose hooks run in between."""
    for part in module.modules():
        part.register_forward_hook(_unflatten_hook)


def _take_apart(module: nn.Module, inputs: Any, output: Any) -> Any:
    if not dataclasses.is_dataclass(output):
        return None
    fields = _Fields({field.name: getattr(output, field.name) for field in dataclasses.fields(output)})
    fields.kind = type(output)
    return fields


def _unflatten_hook(module: nn.Module, inputs: Any, output: Any) -> Any:
    return output.kind(**output) if isinstance(output, _Fields) else None
