"""Let ZeRO-3 see the tensors inside a module's dataclass output.

Under ZeRO-3 a rank holds only its part of a module's weights. DeepSpeed fetches the other parts before the module's
backward pass, and knows when that begins by wrapping the tensors of the module's output in an autograd function. It
looks for tensors in tuples, lists and dicts. In any other object it finds none: then nothing is fetched, and the
backward pass meets a weight without elements.

Our models return dataclasses, so that an output has names and types. To DeepSpeed they are shown as dicts: one hook per
module turns its dataclass into a dict before DeepSpeed's hooks run, and one turns it back afterwards. Hooks run in the
order in which they were registered, hence one function to call before ``deepspeed.initialize`` and one after it.
"""

import dataclasses
from typing import Any

from torch import nn


class _Fields(dict[str, Any]):
    """The fields of a dataclass instance by name; DeepSpeed replaces its values in place."""

    kind: type
    """The dataclass."""


def flatten(model: nn.Module) -> None:
    """Register the hooks that turn dataclass outputs into dicts; call it before ``deepspeed.initialize``."""
    for module in model.modules():
        module.register_forward_hook(_flatten_output)


def unflatten(model: nn.Module) -> None:
    """Register the hooks that turn the dicts back into dataclasses; call it after ``deepspeed.initialize``."""
    for module in model.modules():
        module.register_forward_hook(_unflatten_output)


def _flatten_output(module: nn.Module, inputs: Any, output: Any) -> Any:
    if not dataclasses.is_dataclass(output):
        return None  # to torch: leave the output as it is
    fields = _Fields({field.name: getattr(output, field.name) for field in dataclasses.fields(output)})
    fields.kind = type(output)
    return fields


def _unflatten_output(module: nn.Module, inputs: Any, output: Any) -> Any:
    return output.kind(**output) if isinstance(output, _Fields) else None
