"""Gradients at stages 1 and 2: taken from autograd into buckets, and scattered to their owners as backward still runs.

A parameter's gradient is complete when autograd has accumulated it. A hook then adds it to the bucket's float32 buffer
and frees it. A bucket whose parameters have all reported is sent off at once, and the backward pass of the layers below
goes on: only what the first layers and the embeddings send is not hidden behind it.

Stage 1 (`StepReduction`) keeps a buffer for each bucket, adds up all micro-steps in it and sends it in the last one.
The sum is written next to the rank's own gradients, not over them. So a step that is skipped can still say which rank
had the NaN, and in which parameter.

Stage 2 (`MicroStepReduction`) keeps the sums of its own windows alone: in every micro-step it fills a buffer for as
long as the bucket is computed and sent, and adds what arrives to the sum. It sends as many times more as a step has
micro-steps, and needs a few buckets of memory instead of all of them.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from megabert.engine.buckets import Bucket
from megabert.engine.exchange import Flat, TwoLegs, Work

IN_FLIGHT = 2
"""Buckets of stage 2 that may be under way while another is computed."""


class GradientReduction(ABC):
    """The gradients of one optimizer step at a time."""

    def __init__(self, buckets: Sequence[Bucket], exchange: Flat | TwoLegs) -> None:
        """Put a hook on every parameter.

        Args:
            buckets: In the order in which the forward pass uses them; they are sent in the opposite order.
            exchange: How they are sent.
        """
        self._buckets, self._exchange = buckets, exchange
        self._is_sending = False
        self._missing: list[int] = []
        self._fresh: list[set[str]] = [set() for _ in buckets]
        # A reduction is started on the same buckets in the same order on every rank, whatever the order in which the
        # backward pass completes them: this is the next one.
        self._next = len(buckets) - 1
        for index, bucket in enumerate(buckets):
            for name, parameter in bucket.parameters.items():
                self._take_gradients_of(parameter, index, name)

    def begin_backward(self, *, is_last: bool) -> None:
        """Expect a backward pass, which is the step's last one or not."""
        self._is_sending = self._sends_in(is_last=is_last)
        self._missing = [len(bucket.parameters) for bucket in self._buckets]

    @abstractmethod
    def end_backward(self) -> None:
        """Do what is due after each backward pass."""

    @abstractmethod
    def finish(self) -> list[Tensor]:
        """Send what was not sent yet, wait for all of it, and return this rank's windows of the sums.

        On a GPU it is the stream that waits, not the host.
        """

    @abstractmethod
    def forget(self) -> None:
        """Begin a new step: the next backward pass overwrites what is there."""

    @abstractmethod
    def _sends_in(self, *, is_last: bool) -> bool:
        """Return whether buckets are sent during a backward pass."""

    @abstractmethod
    def _views_of(self, index: int) -> dict[str, Tensor]:
        """Return where the gradients of a bucket's parameters are added up."""

    @abstractmethod
    def _send(self, index: int) -> None:
        """Start the reduction of a bucket; gloo and NCCL have threads and streams of their own for it."""

    def _take_gradients_of(self, parameter: nn.Parameter, index: int, name: str) -> None:
        fresh = self._fresh[index]

        def take(parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            assert gradient is not None
            view = self._views_of(index)[name]
            # The first gradient overwrites what an earlier use of the buffer has left: nothing is cleared in between.
            if name in fresh:
                view.add_(gradient)
            else:
                view.copy_(gradient)
                fresh.add(name)
            self._missing[index] -= 1
            if self._is_sending:
                while self._next >= 0 and self._missing[self._next] == 0:
                    self._send_next()

        parameter.register_post_accumulate_grad_hook(take)

    def _send_next(self) -> None:
        views = self._views_of(self._next)
        for name in views.keys() - self._fresh[self._next]:  # in no graph: what is there is older
            views[name].zero_()
        self._send(self._next)
        self._next -= 1

    def _start_over(self) -> None:
        self._next = len(self._buckets) - 1
        for fresh in self._fresh:
            fresh.clear()


class StepReduction(GradientReduction):
    """Stage 1: local gradients are added up over micro-steps, and sent once."""

    def __init__(
        self, buckets: Sequence[Bucket], exchange: Flat | TwoLegs, buffers: Sequence[Tensor], *, overlaps: bool
    ) -> None:
        """Take the buffers.

        Args:
            buckets: As in ``GradientReduction``.
            exchange: Likewise.
            buffers: Where each bucket's gradients are added up: ``Bucket.zeros()``, in a world of one ``gradient_sum``.
            overlaps: Whether buckets are sent during the last backward pass, and not after it.
        """
        self._buffers, self._overlaps = buffers, overlaps
        self._views = [bucket.views(buffer) for bucket, buffer in zip(buckets, buffers, strict=True)]
        self._works: list[Work] = []
        super().__init__(buckets, exchange)

    def end_backward(self) -> None:
        """Do nothing."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters that have one, and this rank's own gradient, added up since the last update."""
        for views, fresh in zip(self._views, self._fresh, strict=True):
            yield from ((name, views[name]) for name in views if name in fresh)

    def finish(self) -> list[Tensor]:
        """Send the rest, and return the windows of the sums."""
        while self._next >= 0:
            self._send_next()
        for work in self._works:
            work.wait()
        self._works.clear()
        return [bucket.gradient_sum for bucket in self._buckets]

    def forget(self) -> None:
        """Begin a new step, also after one that was given up after its last backward pass."""
        if self._works:
            self.finish()
        self._start_over()

    def _sends_in(self, *, is_last: bool) -> bool:
        return is_last and self._overlaps

    def _views_of(self, index: int) -> dict[str, Tensor]:
        return self._views[index]

    def _send(self, index: int) -> None:
        bucket = self._buckets[index]
        if not bucket.is_alone:
            self._works.append(self._exchange.reduce(bucket.gradient_sum, self._buffers[index]))


class MicroStepReduction(GradientReduction):
    """Stage 2: each micro-step's gradients are sent, and their sums added up by the owners."""

    def __init__(self, buckets: Sequence[Bucket], exchange: Flat | TwoLegs, *, overlaps: bool) -> None:
        """Allocate nothing: buffers come and go with the buckets.

        Args:
            buckets: As in ``GradientReduction``.
            exchange: Likewise.
            overlaps: Whether the backward pass goes on while a bucket is sent.
        """
        self._in_flight = IN_FLIGHT if overlaps else 0
        self._filling: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}
        self._under_way: deque[tuple[Work, Tensor, Tensor, Tensor]] = deque()
        self._has_sum = [False] * len(buckets)
        super().__init__(buckets, exchange)

    def begin_backward(self, *, is_last: bool) -> None:
        """Expect a backward pass; one that was given up has left nothing that counts."""
        self._filling.clear()
        self._start_over()
        super().begin_backward(is_last=is_last)

    def end_backward(self) -> None:
        """Send what no gradient came for, so that all ranks send the same."""
        while self._next >= 0:
            self._send_next()

    def finish(self) -> list[Tensor]:
        """Return the windows of the sums, zeros before the first micro-step."""
        self._land(0)
        for bucket, has_sum in zip(self._buckets, self._has_sum, strict=True):
            if not has_sum:
                bucket.gradient_sum.zero_()
        return [bucket.gradient_sum for bucket in self._buckets]

    def forget(self) -> None:
        """Begin a new step: the first micro-step's sums replace what is there."""
        self._land(0)
        self._has_sum = [False] * len(self._buckets)

    def _sends_in(self, *, is_last: bool) -> bool:
        return True

    def _views_of(self, index: int) -> dict[str, Tensor]:
        if index not in self._filling:
            buffer = self._buckets[index].zeros()
            self._filling[index] = buffer, self._buckets[index].views(buffer)
        return self._filling[index][1]

    def _send(self, index: int) -> None:
        bucket, (gradients, _) = self._buckets[index], self._filling.pop(index)
        is_first, self._has_sum[index] = not self._has_sum[index], True
        if bucket.is_alone:
            bucket.gradient_sum.copy_(gradients) if is_first else bucket.gradient_sum.add_(gradients)
            return
        received = bucket.gradient_sum if is_first else torch.empty_like(bucket.gradient_sum)
        work = self._exchange.reduce(received, gradients)
        self._under_way.append((work, received, bucket.gradient_sum, gradients))
        self._land(self._in_flight)

    def _land(self, remaining: int) -> None:
        """Wait for the oldest reductions until so many are under way, and add up what they brought."""
        while len(self._under_way) > remaining:
            work, received, gradient_sum, _ = self._under_way.popleft()
            work.wait()
            if received is not gradient_sum:
                gradient_sum.add_(received)
