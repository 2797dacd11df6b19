"""Stage 1: DeepSpeed's layout and masters, and our own reduction, update and gathering; `zero_stages` explains them."""

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from megabert.engine.buckets import bucket_of
from megabert.engine.gradient_reduction import GradientReduction
from megabert.engine.unsharded import Windows
from megabert.engine.weight_gathering import WeightGathering


class Zero1(Windows):
    """Stage 1 in float32 and float16: gradients are scattered and weights gathered in buckets, by ourselves."""

    def __init__(self, engine: Any, *, overlaps: bool) -> None:
        """Take gradients and weights over from DeepSpeed, which keeps the layout and the masters."""
        super().__init__(engine)
        self._drop_hooks()
        buffers = getattr(self.optimizer, "fp32_groups_gradients_flat", None) or [None] * len(list(self._groups()))
        buckets = [
            bucket_of({self.names[id(p)]: p for p in parameters}, weights, master, buffer, rank=dist.get_rank())
            for (parameters, weights, master), buffer in zip(self._groups(), buffers, strict=True)
        ]
        self._reduction = GradientReduction(buckets, overlaps=overlaps)
        self._gathering = WeightGathering(engine.module, buckets)
        self._masters = self.optimizer.optimizer  # the optimizer inside DeepSpeed's
        self._masters.updated = self._gathering.start

    def _drop_hooks(self) -> None:
        """Remove DeepSpeed's hooks, which copy gradients into buffers that nobody would read."""
        for hook in self.optimizer._grad_acc_hooks:
            hook.remove()

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
        """Add the gradients to the buckets, and send these in the last micro-step."""
        self._reduction.begin_backward(is_last=is_last)
        scale = self.loss_scale
        (loss if scale == 1.0 else loss * scale).backward()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole local gradients, from the float32 buckets."""
        return self._reduction.gradients()

    def sum_of_squares(self) -> Tensor:
        """Wait for the reduction; return the sum of squares of this rank's windows."""
        return self._squares(self._reduction.finish())

    def update(self) -> None:
        """Update the masters of this rank's windows, and start to gather the weights."""
        self._masters.step()
        self._reduction.forget()
        if getattr(self.optimizer, "dynamic_loss_scale", False):
            self.optimizer.loss_scaler.update_scale(False)

    def discard(self) -> None:
        """Drop the accumulated gradients."""
        self._reduction.forget()

    def refresh(self) -> None:
        """Copy this rank's masters into the model's flat buffers and gather those of the other ranks."""
        self._gathering.refresh()


class Bf16(Zero1):
    """Stage 1 in bfloat16, for which DeepSpeed has an optimizer of its own: ``BF16_Optimizer``."""

    def _groups(self) -> Iterator[tuple[list[nn.Parameter], Tensor, Tensor]]:
        """Yield what `Zero1` does, which has other names here."""
        optimizer = self.optimizer
        return zip(optimizer.bf16_groups, optimizer.bf16_groups_flat, optimizer.fp32_groups_flat_partition, strict=True)
