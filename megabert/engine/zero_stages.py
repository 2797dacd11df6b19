"""Where each of DeepSpeed's optimizers keeps its gradients, and how its model weights are brought up to the masters.

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) shards what data parallelism would keep on every rank. A *master* is
the float32 weight that the optimizer updates; *whole* means all elements of every parameter, *local* not yet reduced:

    stage                 sharded over ranks                      gradients between ``backward`` and ``step``
    0 (Unsharded)         nothing                                 whole and local, in ``parameter.grad``
    1 (Zero1, Bf16)       masters, moments                        whole and local, in float32 accumulators
    2 (Zero2)             masters, moments, gradients             reduced; this rank's window of each parameter group
    3 (Zero3)             masters, moments, gradients, weights    reduced; this rank's part of each parameter

DeepSpeed's documented access to a gradient (``safe_get_full_grad``) gathers one whole parameter from all ranks. The
finite check needs every gradient in every step, so it reads the buffers where they are. They are private: whatever
depends on their names is in this file and in `fragments`, DeepSpeed is pinned (0.19.8), and the tests in
``tests/distributed`` compare every stage with plain torch.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from megabert.optim import Fragment


class Unsharded:
    """Stage 0: DeepSpeed leaves parameters, gradients and optimizer as torch made them."""

    is_replicated = True
    """Whether every rank holds all masters."""

    def __init__(self, engine: Any, fragments: list[Fragment]) -> None:
        self.engine = engine
        self.optimizer = engine.optimizer
        self.fragments = fragments
        self.names = {id(parameter): name for name, parameter in engine.module.named_parameters()}

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's name and what this rank has accumulated of its gradient, before the optimizer runs."""
        for name, parameter in self.engine.module.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def discard(self) -> None:
        """Drop the accumulated gradients."""
        self.engine.zero_grad()

    def refresh(self) -> None:
        """Do nothing: the model's weights are the masters."""


class Zero1(Unsharded):
    """Stage 1 in float32 and float16: gradients are whole and local until ``step`` reduces them."""

    is_replicated = False

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole local gradients: the float32 ones, or the float32 accumulators of 16-bit ones."""
        for group in self.optimizer.bit16_groups:  # called so in float32, too
            for parameter in group:
                gradient = self.optimizer.get_gradient_for_reduction(parameter)
                if gradient is not None:
                    yield self.names[id(parameter)], gradient

    def discard(self) -> None:
        """Drop the accumulated gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def refresh(self) -> None:
        """Copy this rank's masters into the model's flat buffers and gather those of the other ranks."""
        self.optimizer.update_lp_params()


class Bf16(Zero1):
    """Stage 1 in bfloat16, for which DeepSpeed has an optimizer of its own: ``BF16_Optimizer``."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole local float32 gradients."""
        for parameters, gradients in zip(self.optimizer.bf16_groups, self.optimizer.fp32_groups_gradients, strict=True):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                yield self.names[id(parameter)], gradient


class Zero2(Zero1):
    """Stage 2: each ``backward`` reduces, and a rank accumulates its own window of each parameter group."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's fragments of the reduced gradients."""
        optimizer = self.optimizer
        for index, master in enumerate(optimizer.single_partition_of_fp32_groups):
            mine = {fragment.parameter: fragment for fragment in self.fragments if fragment.flat is master}
            # In 16 bits there is one float32 buffer, laid out like the master ...
            accumulated = getattr(optimizer.averaged_gradients.get(index), "flat_partition", None)
            if accumulated is not None:
                yield from ((name, fragment.view(accumulated)) for name, fragment in mine.items())
                continue
            # ... and in float32 a list with a tensor for each parameter that the window touches. Of one that begins or
            # ends outside of the window only the elements inside are ours.
            gradients = optimizer.all_grad_tensors.get(index) or []
            for parameter, gradient in zip(optimizer.params_in_partition[index], gradients, strict=False):
                fragment = mine[self.names[id(parameter)]]
                yield fragment.parameter, gradient.view(-1).narrow(0, fragment.start, fragment.numel)

    def discard(self) -> None:
        """Drop the accumulated gradients, the reduced ones included."""
        super().discard()
        for index in range(len(self.optimizer.bit16_groups)):
            self.optimizer.averaged_gradients[index] = None
            self.optimizer.all_grad_tensors[index] = None


class Zero3(Unsharded):
    """Stage 3: each ``backward`` reduces, and a rank accumulates its part of every parameter in one buffer."""

    is_replicated = False

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


def stage_of(engine: Any, fragments: list[Fragment]) -> Unsharded:
    """Return the access that fits a ``DeepSpeedEngine``."""
    if hasattr(engine.optimizer, "bf16_groups"):
        return Bf16(engine, fragments)
    kinds = {0: Unsharded, 1: Zero1, 2: Zero2, 3: Zero3}
    return kinds[int(engine.zero_optimization_stage())](engine, fragments)
