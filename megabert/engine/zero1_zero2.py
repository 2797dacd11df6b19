"""Stages 1 and 2: DeepSpeed's layout and masters, and our own reduction, update and gathering; see `zero_stages`.

Weights are gathered from their owners bucket by bucket, while the next step's first layers already run. As soon as the
optimizer has updated a bucket's masters, they are rounded into this rank's partition of the model's weights (LAMB
rounds while it updates) and the gathering of the other partitions is started. Whoever uses a weight has to wait for its
bucket first:

- a layer waits when it is called, by a hook. A layer is a member of a ``ModuleList``: nobody else reads its weights;
- everything else (embeddings, heads, tied weights) is waited for before the model is called, since a weight outside of
  the layers may be read anywhere.

On a GPU it is the stream that waits, not the host.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from megabert.engine.buckets import Bucket, Collectives, Work, bucket_of
from megabert.engine.gradient_reduction import GradientReduction, MicroStepReduction, StepReduction
from megabert.engine.zero_stages import Partitioned


class Scattering(Partitioned):
    """What stages 1 and 2 share: gradients are scattered and weights gathered in buckets, by ourselves."""

    _reduction: GradientReduction

    def __init__(self, engine: Any, collectives: Collectives) -> None:
        """Take gradients and weights over from DeepSpeed, which keeps the layout and the masters."""
        super().__init__(engine)
        self._drop_hooks()
        self._buckets = [
            bucket_of({self.names[id(p)]: p for p in parameters}, weights, master, buffer, rank=dist.get_rank())
            for (parameters, weights, master), buffer in zip(self._groups(), self._whole_buffers(), strict=True)
        ]
        self._gathering = WeightGathering(engine.module, self._buckets, collectives)
        self._masters = self.optimizer.optimizer  # the optimizer inside DeepSpeed's
        self._masters.updated = functools.partial(self._gathering.start, is_rounded=self._masters.rounds_weights)
        if self._masters.rounds_weights:
            self._masters.rounded = {
                id(bucket.master): bucket.partition for bucket in self._buckets if not bucket.is_shared
            }

    def _drop_hooks(self) -> None:
        """Remove DeepSpeed's hooks, which reduce gradients, or copy them into buffers that nobody would read."""
        for hook in self.optimizer._grad_acc_hooks:
            hook.remove()

    def _whole_buffers(self) -> list[Tensor | None]:
        """Return the float32 buffers of whole groups that DeepSpeed has allocated for gradients, if it has."""
        return [None for _ in self._groups()]

    @property
    def loss_scale(self) -> float:
        """Factor on the loss."""
        return float(getattr(self.optimizer, "loss_scale", 1.0))

    @property
    def gradient_multiple(self) -> float:
        """The sum over ranks is their number times too large; fp16 has scaled the loss."""
        return self.world_size * self.loss_scale

    def before_forward(self) -> None:
        """Wait for the weights outside of the layers; each layer waits for its own."""
        self._gathering.before_forward()

    def after_forward(self) -> None:
        """Check that every layer has waited."""
        self._gathering.check_forward()

    def settle(self) -> None:
        """Wait for all weights that are under way."""
        self._gathering.settle()

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Add the gradients to the buckets, and send these: at stage 1 in the last micro-step, at stage 2 in each."""
        self._reduction.begin_backward(is_last=is_last)
        scale = self.loss_scale
        (loss if scale == 1.0 else loss * scale).backward()
        self._reduction.end_backward()

    def sum_of_squares(self) -> Tensor:
        """Wait for the reduction; return the sum of squares of this rank's partitions."""
        return self._squares(self._reduction.finish())

    def start_update(self) -> None:
        """Launch the update of the masters of this rank's partitions, and the gathering of the weights."""
        self._masters.step()

    def finish_update(self) -> None:
        """End a step whose update was made: forget its sums, and let the loss scale grow when it is due."""
        self._reduction.forget()
        if getattr(self.optimizer, "dynamic_loss_scale", False):
            self.optimizer.loss_scaler.update_scale(False)

    def discard(self) -> None:
        """Drop the accumulated gradients."""
        self._reduction.forget()

    def refresh(self) -> None:
        """Copy this rank's masters into the model's flat buffers and gather those of the other ranks."""
        self._gathering.refresh()


class Zero1(Scattering):
    """Stage 1 in float32 and float16: a rank adds up its own gradients, whole, and sends them once in a step."""

    _reduction: StepReduction

    def __init__(self, engine: Any, collectives: Collectives, *, overlaps: bool) -> None:
        """Add the buffers of local gradients."""
        super().__init__(engine, collectives)
        buffers = [self._buffer_of(*pair) for pair in zip(self._buckets, self._whole_buffers(), strict=True)]
        self._reduction = StepReduction(self._buckets, collectives, buffers, overlaps=overlaps)

    @staticmethod
    def _buffer_of(bucket: Bucket, allocated: Tensor | None) -> Tensor:
        if bucket.is_alone:
            return bucket.gradient_sum
        return bucket.zeros() if allocated is None else allocated

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole local gradients, from the float32 buckets."""
        return self._reduction.gradients()


class Bf16(Zero1):
    """Stage 1 in bfloat16, for which DeepSpeed has an optimizer of its own: ``BF16_Optimizer``."""

    def _groups(self) -> Iterator[tuple[list[nn.Parameter], Tensor, Tensor]]:
        """Yield what `Scattering` does, which has other names here."""
        optimizer = self.optimizer
        return zip(optimizer.bf16_groups, optimizer.bf16_groups_flat, optimizer.fp32_groups_flat_partition, strict=True)

    def _whole_buffers(self) -> list[Tensor | None]:
        """Return the buffers of ``BF16_Optimizer``."""
        return list(self.optimizer.fp32_groups_gradients_flat)


class Zero2(Scattering):
    """Stage 2: a rank keeps its own partitions of the reduced gradients, which are sent in each micro-step."""

    def __init__(self, engine: Any, collectives: Collectives, *, overlaps: bool) -> None:
        """Add nothing: buffers are allocated as they are needed."""
        super().__init__(engine, collectives)
        self._reduction = MicroStepReduction(self._buckets, collectives, overlaps=overlaps)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's fragments of the reduced gradients."""
        self._reduction.finish()
        for fragment in self.fragments:
            assert fragment.flat.grad is not None
            yield fragment.parameter, fragment.view(fragment.flat.grad)


class WeightGathering:
    """The weights that are under way between two steps."""

    def __init__(self, model: nn.Module, buckets: Sequence[Bucket], collectives: Collectives) -> None:
        """Put a hook on every layer."""
        self._collectives = collectives
        self._buckets = {id(bucket.master): bucket for bucket in buckets}
        self._under_way: dict[int, Work] = {}  # by id of the bucket's master
        bucket_of = {id(p): id(bucket.master) for bucket in buckets for p in bucket.parameters.values()}
        in_layers: set[int] = set()
        for layer in _layers(model):
            parameters = {id(parameter) for parameter in layer.parameters()}
            in_layers |= parameters
            needed = {bucket_of[key] for key in parameters if key in bucket_of}
            layer.register_forward_pre_hook(lambda *_, needed=needed: self._wait_for(needed))
        self._outside = {bucket for key, bucket in bucket_of.items() if key not in in_layers}

    def start(self, master: Tensor, *, is_rounded: bool) -> None:
        """Round the masters of a bucket into the model's weights, unless that is done, and gather the other ranks'."""
        bucket = self._buckets[id(master)]
        if not is_rounded:
            bucket.round_masters()
        if not bucket.is_alone:
            self._under_way[id(master)] = self._collectives.gather(bucket.weights, bucket.partition)

    def before_forward(self) -> None:
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

    def refresh(self) -> None:
        """Gather all weights anew from the masters, and wait for them; every rank calls it."""
        self.settle()
        for bucket in self._buckets.values():
            self.start(bucket.master, is_rounded=False)
        self.settle()

    def _wait_for(self, needed: set[int]) -> None:
        for key in [key for key in self._under_way if key in needed]:
            self._under_way.pop(key).wait()


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of the outermost ModuleLists."""
    for child in model.children():
        yield from child if isinstance(child, nn.ModuleList) else _layers(child)
