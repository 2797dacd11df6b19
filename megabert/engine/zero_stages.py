"""Where each of DeepSpeed's optimizers keeps what the engine needs: gradients, and the way from masters to weights.

Written against DeepSpeed 0.19.8 (pinned), which has no public access to gradients between ``backward`` and ``step``.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from megabert.optim import Fragment


class Unsharded:
    """Stage 0: DeepSpeed leaves parameters, gradients and optimizer as torch made them."""

    replicated = True

    def __init__(self, engine: Any, fragments: list[Fragment]) -> None:
        self.engine = engine
        self.optimizer = engine.optimizer
        self.fragments = fragments
        self.names = {id(parameter): name for name, parameter in engine.module.named_parameters()}

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (parameter, what was accumulated so far) on this rank, before the optimizer saw any of it."""
        for name, parameter in self.engine.module.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def discard(self) -> None:
        """Forget the accumulated gradients."""
        self.engine.zero_grad()

    def refresh(self) -> None:
        """Bring the model's weights up to the float32 masters."""


class Zero1(Unsharded):
    """Stage 1 without BF16_Optimizer: gradients are whole and local until ``step`` reduces them."""

    replicated = False

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole local gradients: float32 ones, or the float32 accumulators of 16-bit ones."""
        for group in self.optimizer.bit16_groups:
            for parameter in group:
                gradient = self.optimizer.get_gradient_for_reduction(parameter)
                if gradient is not None:
                    yield self.names[id(parameter)], gradient

    def discard(self) -> None:
        """Forget the accumulated gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def refresh(self) -> None:
        """Copy this rank's masters into the model's flat buffers and gather those of the others."""
        self.optimizer.update_lp_params()


class Bf16(Zero1):
    """Stage 1 in bfloat16 with float32 accumulation (BF16_Optimizer): whole local float32 gradients."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole local float32 gradients."""
        for parameters, gradients in zip(self.optimizer.bf16_groups, self.optimizer.fp32_groups_gradients, strict=True):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                yield self.names[id(parameter)], gradient


class Zero2(Zero1):
    """Stage 2: each micro-step reduces; a rank accumulates its own window."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's reduced pieces."""
        optimizer = self.optimizer
        for index, master in enumerate(optimizer.single_partition_of_fp32_groups):
            mine = {f.parameter: f for f in self.fragments if f.flat is master}
            compact = getattr(optimizer.averaged_gradients.get(index), "flat_partition", None)
            if compact is not None:  # 16 bits: one float32 buffer laid out like the master
                yield from ((name, fragment.view(compact)) for name, fragment in mine.items())
                continue
            gradients = optimizer.all_grad_tensors.get(index) or []
            for parameter, gradient in zip(optimizer.params_in_partition[index], gradients, strict=False):
                fragment = mine[self.names[id(parameter)]]
                yield fragment.parameter, gradient.view(-1).narrow(0, fragment.start, fragment.numel)

    def discard(self) -> None:
        """Forget the accumulated gradients."""
        super().discard()
        for index in range(len(self.optimizer.bit16_groups)):
            self.optimizer.averaged_gradients[index] = None
            self.optimizer.all_grad_tensors[index] = None


class Zero3(Unsharded):
    """Stage 3: each micro-step reduces; a rank accumulates its piece of every parameter in one buffer."""

    replicated = False

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's reduced pieces (their padding is zero)."""
        position = 0
        for group in self.optimizer.fp16_groups:
            for parameter in group:
                numel = parameter.partition_numel()
                yield self.names[id(parameter)], self.optimizer.grad_partitions_flat_buffer.narrow(0, position, numel)
                position += numel

    def discard(self) -> None:
        """Forget the accumulated gradients, as DeepSpeed does after an overflow."""
        self.optimizer._pre_step()
        self.optimizer._partition_all_parameters()
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.averaged_gradients = {}
        self.optimizer.grad_partitions_flat_buffer.zero_()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy masters into the model's partitions and gather the parameters that stay whole."""
        optimizer = self.optimizer
        optimizer._partition_all_parameters()
        for sub_group in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(sub_group)
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)


def stage_of(engine: Any, fragments: list[Fragment]) -> Unsharded:
    """Return the access that fits a ``DeepSpeedEngine``."""
    if hasattr(engine.optimizer, "bf16_groups"):
        return Bf16(engine, fragments)
    kinds = {0: Unsharded, 1: Zero1, 2: Zero2, 3: Zero3}
    return kinds[int(engine.zero_optimization_stage())](engine, fragments)
