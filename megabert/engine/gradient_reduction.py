"""ZeRO-1's gradients: added up in float32 over micro-steps, and scattered to their owners while backward still runs.

A parameter's gradient is complete when autograd has accumulated it. A hook then adds it to the bucket's float32 buffer
and frees it. In the last micro-step of a step a bucket whose parameters have all reported is sent off at once, and the
backward pass of the layers below goes on: only what the first layers and the embeddings send is not hidden behind it.

The sum is written next to the rank's own gradients, not over them. So a step that is skipped can still say which rank
had the NaN, and in which parameter.
"""

from collections.abc import Iterator, Sequence

import torch.distributed as dist
from torch import Tensor, nn

from megabert.engine.buckets import Bucket


class GradientReduction:
    """The gradients of one optimizer step at a time."""

    def __init__(self, buckets: Sequence[Bucket], *, overlaps: bool) -> None:
        """Put a hook on every parameter.

        Args:
            buckets: In the order in which the forward pass uses them; they are sent in the opposite order.
            overlaps: Whether buckets are sent during the last backward pass, and not after it.
        """
        self._buckets = buckets
        self._views = [bucket.views() for bucket in buckets]
        self._overlaps = overlaps
        self._is_last = False
        self._missing: list[int] = []
        self._works: list[dist.Work | None] = []
        self._fresh: list[set[str]] = [set() for _ in buckets]
        # A reduction is started on the same buckets in the same order on every rank, whatever the order in which the
        # backward pass completes them: this is the next one.
        self._next = len(buckets) - 1
        for index, bucket in enumerate(buckets):
            for name, parameter in bucket.parameters.items():
                self._take_gradients_of(parameter, index, name)

    def begin_backward(self, *, is_last: bool) -> None:
        """Expect a backward pass, which is the step's last one or not."""
        self._is_last = is_last and self._overlaps
        self._missing = [len(bucket.parameters) for bucket in self._buckets]

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters that have one, and this rank's own gradient, added up since the last update."""
        for views, fresh in zip(self._views, self._fresh, strict=True):
            yield from ((name, views[name]) for name in views if name in fresh)

    def finish(self) -> list[Tensor]:
        """Send what was not sent yet, wait for all of it, and return this rank's windows of the sums.

        On a GPU it is the stream that waits, not the host.
        """
        while self._next >= 0:
            self._send_next()
        for work in self._works:
            if work is not None:
                work.wait()
        self._works.clear()
        return [bucket.gradient_sum for bucket in self._buckets]

    def forget(self) -> None:
        """Begin a new step: the next backward pass overwrites what is there."""
        if self._works:  # a step that was given up after its last backward pass
            self.finish()
        self._next = len(self._buckets) - 1
        for fresh in self._fresh:
            fresh.clear()

    def _take_gradients_of(self, parameter: nn.Parameter, index: int, name: str) -> None:
        view, fresh = self._views[index][name], self._fresh[index]

        def take(parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            assert gradient is not None
            # The first gradient of a step overwrites that of the step before: nothing has to be cleared in between.
            if name in fresh:
                view.add_(gradient)
            else:
                view.copy_(gradient)
                fresh.add(name)
            self._missing[index] -= 1
            if self._is_last:
                while self._next >= 0 and self._missing[self._next] == 0:
                    self._send_next()

        parameter.register_post_accumulate_grad_hook(take)

    def _send_next(self) -> None:
        """Start the reduction of a bucket; gloo and NCCL have threads and streams of their own for it."""
        bucket, views, fresh = self._buckets[self._next], self._views[self._next], self._fresh[self._next]
        for name in views.keys() - fresh:  # in no micro-step's graph: what is there is an earlier step's
            views[name].zero_()
        if bucket.gradient_sum is not bucket.gradients:
            self._works.append(dist.reduce_scatter_tensor(bucket.gradient_sum, bucket.gradients, async_op=True))
        self._next -= 1
