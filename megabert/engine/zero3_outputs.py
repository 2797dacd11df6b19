"""Dataclass outputs under ZeRO-3, whose hooks look for tensors in them."""

import dataclasses
from typing import Any

import torch


class Fields(dict[str, Any]):
    """The fields of a dataclass instance by name, so that ZeRO-3 sees the tensors in them.

    Under ZeRO-3 a rank holds only its part of a module's weights. DeepSpeed fetches the other parts before the module's
    backward pass, and knows when that begins by wrapping the tensors of the module's output in an autograd function. It
    looks for tensors in tuples, lists and dicts, and replaces them in place. In any other object it finds none: then
    nothing is fetched, and the backward pass meets a weight without elements. Our models return dataclasses, so that an
    output has names and types.
    """

    kind: type
    """The dataclass."""


def to_fields(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
    """Replace a dataclass by its fields: a forward hook to run before DeepSpeed's."""
    if not dataclasses.is_dataclass(output):
        return None  # to torch: leave the output as it is
    fields = Fields({field.name: getattr(output, field.name) for field in dataclasses.fields(output)})
    fields.kind = type(output)
    return fields


def from_fields(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
    """Make the dataclass again: a forward hook to run after DeepSpeed's."""
    return output.kind(**output) if isinstance(output, Fields) else None
