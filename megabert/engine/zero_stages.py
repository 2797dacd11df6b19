"""The ZeRO stages: the interface that the engine calls, and stage 0; see `zero1_zero2` and `zero3` for the others.

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) shards what data parallelism would keep on every rank. A *master* is
the float32 weight that the optimizer updates; *whole* means all elements of every parameter, *local* not yet reduced:

    stage                 sharded over ranks                      gradients between ``backward`` and ``step``
    0 (Zero0)             nothing                                 whole and local, in ``parameter.grad``
    1 (PartitionedStage)  masters, moments                        whole and local, in float32 buckets
    2 (PartitionedStage)  masters, moments, gradients             reduced; this rank's partition of each bucket
    3 (Zero3)             masters, moments, gradients, weights    reduced; this rank's part of each parameter

Stage 3 is DeepSpeed's own: it reduces, clips, updates and gathers. At stages 0 to 2 it lays out weights and masters,
and the collectives are ours: its stages 1 and 2 all-reduce although a reduce-scatter is enough, and do not overlap with
the backward pass (docs/decisions.md).

DeepSpeed's documented access to a gradient (``safe_get_full_grad``) gathers one whole parameter from all ranks. The
norm needs every gradient in every step, so it is taken directly from DeepSpeed's buffers. They are private: all code
that depends on their names is in the files of the stages, DeepSpeed is pinned (0.19.8), and the tests in
``tests/several_ranks`` compare every stage with plain torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megabert.ops.lamb.reference import sums_of_squares
from megabert.optim import Fragment, StepSettings, UpdateSink


class ZeroStage(ABC):
    """A ZeRO stage. `Engine` calls these methods in the order in which they stand here, on every rank alike."""

    is_replicated = False
    """Whether every rank holds all masters."""
    sink = UpdateSink()
    """Receives the masters that the optimizer has updated."""
    fragments: list[Fragment]
    """Which elements of the float32 masters this rank holds; each stage builds this table when it is built."""

    def __init__(self, engine: Any) -> None:
        """Bind a ``DeepSpeedEngine``."""
        self.engine, self.optimizer, self.device = engine, engine.optimizer, engine.device
        self.world_size = dist.get_world_size()
        self.names = {id(parameter): name for name, parameter in engine.module.named_parameters()}

    @property
    def loss_scale(self) -> float:
        """Factor on the loss, which keeps small gradients above what fp16 can represent; 1 in other precisions."""
        return float(getattr(self.optimizer, "loss_scale", 1.0))

    @property
    def gradient_multiple(self) -> float:
        """How many times the gradient of the global batch is in the numbers that the optimizer sees.

        The sum over ranks is their number times too large, and the loss was scaled.
        """
        return self.world_size * self.loss_scale

    def before_forward(self) -> None:  # noqa: B027
        """Make the weights ready that the model uses outside of its layers."""

    def after_forward(self) -> None:  # noqa: B027
        """Check that the model had all of its weights."""

    @abstractmethod
    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Accumulate the gradients of a micro-step, the last one of a step or not."""

    @abstractmethod
    def sum_of_squares(self) -> Tensor:
        """Reduce the gradients that are not reduced yet, and return this rank's part of their sum of squares.

        Returns:
            A float64 scalar on the device. Over all ranks these add up to the square of the gradient's norm, times the
            square of ``gradient_multiple``; the sum is finite exactly if every element is.
        """

    @abstractmethod
    def start_update(self, settings: StepSettings) -> None:
        """Launch the update of the weights. It does nothing if ``settings.gradient_scale`` turns out to be 0."""

    def finish_update(self, settings: StepSettings) -> None:
        """End a step whose gradients turned out to be finite. Stage 3 updates only now, with a gradient scale of 1."""
        self.discard()

    @abstractmethod
    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's name and this rank's gradient of it, to name the ones that are not finite.

        It is called between ``backward`` and ``discard``, also after an update that did nothing.
        """

    @abstractmethod
    def discard(self) -> None:
        """Drop the accumulated gradients, after an update or in place of it."""

    def settle(self) -> None:  # noqa: B027
        """Wait until all weights have the values of the last update."""

    def refresh(self) -> None:  # noqa: B027
        """Copy masters that were changed into the model's weights. At stage 0 the weights are the masters."""

    def _squares(self, gradients: list[Tensor]) -> Tensor:
        return sums_of_squares(gradients, self.device).sum()


class Zero0(ZeroStage):
    """Stage 0: DeepSpeed leaves parameters, gradients and optimizer as torch made them."""

    is_replicated = True

    def __init__(self, engine: Any) -> None:
        """Enter every parameter whole into the fragment table: each is a flat of its own."""
        super().__init__(engine)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.fragments = [Fragment(p, 0, self.names[id(p)], 0, p.numel()) for p in parameters]
        self._reduced: list[tuple[nn.Parameter, Tensor]] = []

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Let torch accumulate."""
        loss.backward()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the gradients in ``parameter.grad``."""
        for name, parameter in self.engine.module.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def sum_of_squares(self) -> Tensor:
        """Sum a copy of all gradients over ranks: the source of a NaN can be seen in the rank's own gradients only."""
        parameters = [parameter for parameter in self.engine.module.parameters() if parameter.grad is not None]
        gradients = [parameter.grad.view(-1) for parameter in parameters]
        if self.world_size > 1:
            flat = torch.cat(gradients)
            dist.all_reduce(flat)
            gradients = list(flat.split([gradient.numel() for gradient in gradients]))
            self._reduced = list(zip(parameters, gradients, strict=True))
        return self._squares(gradients) / self.world_size  # every rank has all of them

    def start_update(self, settings: StepSettings) -> None:
        """Update with the reduced gradients, then put the rank's own back, which tell where a NaN came from."""
        own = [parameter.grad for parameter, _ in self._reduced]
        for parameter, reduced in self._reduced:
            parameter.grad = reduced.view_as(parameter)
        self.optimizer.step(settings)
        for (parameter, _), gradient in zip(self._reduced, own, strict=True):
            parameter.grad = gradient

    def discard(self) -> None:
        """Drop the gradients."""
        self._reduced = []
        self.engine.zero_grad()
