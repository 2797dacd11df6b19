"""The ZeRO stages: the interface that the engine calls, and stages 0 to 2; `deepspeed_parts` has DeepSpeed's own.

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) shards what data parallelism would keep on every rank. A *master* is
the float32 weight that the optimizer updates; *whole* means all elements of every parameter, *local* not yet reduced:

    stage                 sharded over ranks                      gradients between ``backward`` and ``step``
    0 (Zero0)             nothing                                 whole and local, in ``parameter.grad``
    1 (PartitionedStage)  masters, moments                        whole and local, in float32 buckets
    2 (PartitionedStage)  masters, moments, gradients             reduced; this rank's partition of each bucket
    3 (Zero3)             masters, moments, gradients, weights    reduced; this rank's part of each parameter

Stage 3 is DeepSpeed's own: it reduces, clips, updates and gathers. At stages 1 and 2 it lays out weights and masters,
and the collectives are ours: its stages 1 and 2 all-reduce although a reduce-scatter is enough, and do not overlap with
the backward pass (docs/decisions.md). `deepspeed_parts` has a table of what DeepSpeed does, and all of its names.

Stages 1 and 2 are one class. They differ in the reduction of gradients that it is given (`gradient_reduction`). Weights
are gathered from their owners bucket by bucket, while the next step's first layers already run. As soon as the
optimizer has updated a bucket's masters, they are rounded into this rank's partition of the model's weights (LAMB
rounds while it updates) and the gathering of the other partitions is started. Before a weight is used, somebody has to
wait for its bucket; on a GPU it is the stream that waits, not the host:

- a layer waits when it is called, by a hook. A layer is a member of a ``ModuleList``: nobody else reads its weights;
- everything else (embeddings, heads, tied weights) is waited for before the model is called, since a weight outside of
  the layers may be read anywhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megabert.engine.buckets import Bucket
from megabert.engine.gradient_reduction import GradientReduction
from megabert.ops.fp8 import reset_casts
from megabert.ops.sums_of_squares import sums_of_squares
from megabert.optim import BaseOptimizer, Fragment, StepSettings, UpdateSink

if TYPE_CHECKING:
    from megabert.engine.deepspeed_parts import LossScale


class ZeroStage(ABC):
    """A ZeRO stage. `Engine` calls these methods in the order in which they stand here, on every rank alike."""

    is_replicated = False
    """Whether every rank holds all masters."""
    sink = UpdateSink()
    """Receives the masters that the optimizer has updated."""
    fragments: list[Fragment]
    """Which elements of the float32 masters this rank holds; each stage builds this table when it is built."""

    def __init__(self, module: nn.Module, optimizer: BaseOptimizer, scale: "LossScale") -> None:
        """Bind the model, its optimizer and the factor on the loss."""
        self.module, self.optimizer, self.scale = module, optimizer, scale
        self.world_size = dist.get_world_size()
        self.names = {id(parameter): name for name, parameter in module.named_parameters()}

    @property
    def gradient_multiple(self) -> float:
        """How many times the gradient of the global batch is in the numbers that the optimizer sees.

        The sum over ranks is their number times too large, and the loss was scaled.
        """
        return self.world_size * self.scale.value

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
        """Yield each parameter's name and this rank's gradient of it, so that non-finite gradients can be named.

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
        return sums_of_squares(gradients, next(self.module.parameters()).device).sum()


class Zero0(ZeroStage):
    """Stage 0: DeepSpeed leaves parameters, gradients and optimizer as torch made them."""

    is_replicated = True

    def __init__(self, module: nn.Module, optimizer: BaseOptimizer, scale: "LossScale") -> None:
        """Enter every parameter whole into the fragment table: each is a flat of its own."""
        super().__init__(module, optimizer, scale)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.fragments = [Fragment(p, 0, self.names[id(p)], 0, p.numel()) for p in parameters]
        self._reduced: list[tuple[nn.Parameter, Tensor]] = []

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Let torch accumulate."""
        loss.backward()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the gradients in ``parameter.grad``."""
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def sum_of_squares(self) -> Tensor:
        """Sum a copy of all gradients over ranks: the source of a NaN can be seen in the rank's own gradients only."""
        parameters = [parameter for parameter in self.module.parameters() if parameter.grad is not None]
        gradients = [parameter.grad.view(-1) for parameter in parameters]  # type: ignore[union-attr]
        if self.world_size > 1:
            flat = torch.cat(gradients)
            dist.all_reduce(flat)  # NCCL: the stream waits; gloo: the host
            gradients = list(flat.split([gradient.numel() for gradient in gradients]))
            self._reduced = list(zip(parameters, gradients, strict=True))
        return self._squares(gradients) / self.world_size  # every rank has all of them

    def start_update(self, settings: StepSettings) -> None:
        """Update with the reduced gradients, then put the rank's own back: they show which rank a NaN came from."""
        own = [parameter.grad for parameter, _ in self._reduced]
        for parameter, reduced in self._reduced:
            parameter.grad = reduced.view_as(parameter)
        self.optimizer.step(settings)
        for (parameter, _), gradient in zip(self._reduced, own, strict=True):
            parameter.grad = gradient

    def discard(self) -> None:
        """Drop the gradients."""
        self._reduced = []
        self.module.zero_grad()


class PartitionedStage(ZeroStage):
    """A rank holds a partition of the masters of each bucket; gradients are scattered and weights gathered by us."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: BaseOptimizer,
        scale: "LossScale",
        buckets: Sequence[Bucket],
        reduction: GradientReduction,
    ) -> None:
        """Bind the buckets, whose layout and masters are DeepSpeed's, and the reduction of their gradients."""
        super().__init__(module, optimizer, scale)
        self._buckets, self._reduction = buckets, reduction
        self.fragments = [fragment for bucket in buckets for fragment in bucket.fragments]
        self.sink = self._gathering = WeightGathering(module, buckets)

    def before_forward(self) -> None:
        """Wait for the weights outside of the layers; each layer waits for its own."""
        self._gathering.wait_outside()

    def after_forward(self) -> None:
        """Check that every layer has waited."""
        self._gathering.check_forward()

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Add the gradients to the buckets, and send these: at stage 1 in the last micro-step, at stage 2 in each."""
        self._reduction.begin_backward(is_last=is_last)
        scale = self.scale.value
        (loss if scale == 1.0 else loss * scale).backward()
        self._reduction.end_backward()

    def sum_of_squares(self) -> Tensor:
        """Wait for the reduction; return the sum of squares of this rank's partitions."""
        return self._squares(self._reduction.finish())

    def start_update(self, settings: StepSettings) -> None:
        """Launch the update of this rank's masters, and the gathering of the weights (``WeightGathering.updated``).

        A master's gradient is this rank's part of its bucket's sum (``Bucket``).
        """
        self.optimizer.step(settings)

    def finish_update(self, settings: StepSettings) -> None:
        """Forget the sums of the step, and let the loss scale grow when it is due."""
        self.discard()
        self.scale.update(has_overflowed=False)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the rank's own whole gradients at stage 1, its fragments of the reduced ones at stage 2."""
        return self._reduction.gradients()

    def discard(self) -> None:
        """Forget the sums."""
        self._reduction.forget()

    def settle(self) -> None:
        """Wait for all weights that are under way."""
        self._gathering.settle()

    def refresh(self) -> None:
        """Gather all weights again from the masters, and wait for them."""
        self.settle()
        for bucket in self._buckets:
            self._gathering.updated(bucket.master)
        self.settle()


class WeightGathering(UpdateSink):
    """The weights that are under way between two steps."""

    def __init__(self, model: nn.Module, buckets: Sequence[Bucket]) -> None:
        """Put a hook on every layer."""
        self._buckets = {id(bucket.master): bucket for bucket in buckets}
        self._under_way: dict[int, dist.Work] = {}  # by id of the bucket's master
        bucket_of = {id(p): id(bucket.master) for bucket in buckets for p in bucket.parameters.values()}
        in_layers: set[int] = set()
        for layer in _layers(model):
            parameters = {id(parameter) for parameter in layer.parameters()}
            in_layers |= parameters
            needed = {bucket_of[key] for key in parameters if key in bucket_of}
            layer.register_forward_pre_hook(lambda *_, needed=needed: self._wait_for(needed))
        for bucket in buckets:
            _reset_casts(bucket)
        self._outside = {bucket for key, bucket in bucket_of.items() if key not in in_layers}

    def rounded_weights(self, flat: Tensor) -> Tensor | None:
        """Return this rank's partition of a bucket's weights, unless the masters themselves are the weights."""
        bucket = self._buckets[id(flat)]
        return None if bucket.is_shared else bucket.partition

    def updated(self, flat: Tensor, *, is_rounded: bool = False) -> None:
        """Round the masters of a bucket into the model's weights, unless that is done, and gather the other ranks'."""
        bucket = self._buckets[id(flat)]
        if not (is_rounded or bucket.is_shared):
            bucket.partition.copy_(flat.detach())
        _reset_casts(bucket)
        if not bucket.is_alone:
            self._under_way[id(flat)] = bucket.gather()

    def wait_outside(self) -> None:
        """Wait for the weights outside of the layers."""
        self._wait_for(self._outside)

    def check_forward(self) -> None:
        """Make sure that the forward pass has waited for all weights.

        Raises:
            RuntimeError: A layer's weights were used, if at all, before they were there.
        """
        if self._under_way:
            names = [name for key in self._under_way for name in self._buckets[key].parameters]
            raise RuntimeError(
                f"The model has not called the layers with {names[0]} ... {names[-1]}, so nobody has waited for their "
                "weights. Call the modules of a ModuleList, and do not read their weights from outside."
            )

    def settle(self) -> None:
        """Wait for all weights."""
        self._wait_for(set(self._under_way))

    def _wait_for(self, needed: set[int]) -> None:
        for key in [key for key in self._under_way if key in needed]:
            self._under_way.pop(key).wait()  # NCCL: the stream waits; gloo: the host


def _reset_casts(bucket: Bucket) -> None:
    """Let weights be cast to 8 bits, if they are, at their next use and not again before the next update."""
    for parameter in bucket.parameters.values():
        reset_casts(parameter)


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of the outermost ModuleLists."""
    for child in model.children():
        yield from child if isinstance(child, nn.ModuleList) else _layers(child)
