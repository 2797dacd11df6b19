"""Stage 3, at which DeepSpeed reduces, clips, updates and gathers; `zero_stages` explains it.

`build_engine` also puts two hooks of this file around DeepSpeed's on every module: ``to_fields`` and ``from_fields``.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from megabert.engine import fragment_table
from megabert.engine.zero_stages import ZeroStage
from megabert.optim import Fragment, StepSettings


class Zero3(ZeroStage):
    """Stage 3: each ``backward`` reduces, and a rank accumulates its part of every parameter in one buffer."""

    def __init__(self, engine: Any) -> None:
        """Make the fragment table."""
        super().__init__(engine)
        self.fragments = list(self._parts())

    @property
    def gradient_multiple(self) -> float:
        """DeepSpeed has averaged over the ranks; fp16 has scaled the loss."""
        return self.loss_scale

    def before_forward(self) -> None:
        """Do the rest of DeepSpeedEngine.forward; activation checkpointing may run backward hooks twice."""
        self.optimizer.clear_backward_seen_flag()

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Reduce the gradients of a micro-step to their owners, who accumulate them."""
        # The hooks of DeepSpeedEngine.forward would have called this when the backward pass begins. The loss's own hook
        # runs first, before the gradient of anything inside the model.
        loss.register_hook(lambda gradient: self.engine._backward_prologue())
        self.engine.backward(loss, scale_wrt_gas=False)

    def sum_of_squares(self) -> Tensor:
        """Return the sum of squares of this rank's part of the gradient, which backward has reduced."""
        return self._squares([gradient.view(-1) for _, gradient in self.gradients()])

    def start_update(self, settings: StepSettings) -> None:
        """Do nothing: DeepSpeed clips and updates at once, so the host has to know first that all is finite."""

    def finish_update(self, settings: StepSettings) -> None:
        """Clip, with a norm that DeepSpeed computes itself, and update."""
        inner = self.optimizer.optimizer
        # DeepSpeed calls ``step()`` without arguments, once per sub-group.
        with patch.object(inner, "step", functools.partial(inner.step, settings)):
            self.engine.step()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's part of each reduced gradient; its padding is zero."""
        position = 0
        for group in self.optimizer.fp16_groups:  # called so in every precision
            for parameter in group:
                numel = parameter.partition_numel()
                yield self.names[id(parameter)], self.optimizer.grad_partitions_flat_buffer.narrow(0, position, numel)
                position += numel

    def discard(self) -> None:
        """Drop the accumulated gradients: the same calls that DeepSpeed makes after an fp16 overflow."""
        self.engine._unmanaged_backward_count = 0  # micro-steps since the last update
        self.optimizer._pre_step()
        self.optimizer._partition_all_parameters()
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.averaged_gradients = {}
        self.optimizer.grad_partitions_flat_buffer.zero_()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy masters into this rank's parts of the weights, and gather the small parameters that all ranks keep."""
        optimizer = self.optimizer
        optimizer._partition_all_parameters()
        for sub_group in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(sub_group)
        # Below stage3_param_persistence_threshold elements, fetching a parameter would cost more than keeping it.
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)

    def _parts(self) -> Iterator[Fragment]:
        """Yield this rank's parts.

        Every parameter is cut into as many equal parts as there are ranks, and a rank's parts of a sub-group are one
        flat buffer. The last part is padded, with uninitialised memory: padding is never part of a fragment.
        """
        groups = zip(
            self.optimizer.fp16_groups,
            self.optimizer.fp16_partitioned_groups_flat,
            self.optimizer.fp32_partitioned_groups_flat,
            self.optimizer.sub_group_process_groups,
            strict=True,
        )
        for parameters, model_flat, master, process_group in groups:
            rank = dist.get_rank(group=process_group)
            for parameter in parameters:
                partition = parameter.ds_tensor
                # The partition's ds_numel counts its padding, the parameter's does not.
                start = rank * partition.ds_numel
                numel = max(0, min(partition.ds_numel, parameter.ds_numel - start))
                if numel:
                    offset = (partition.data_ptr() - model_flat.data_ptr()) // partition.element_size()
                    fragment = Fragment(master, offset, self.names[id(parameter)], start, numel)
                    yield fragment_table.checked(fragment, partition.detach().view(-1)[:numel])


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
