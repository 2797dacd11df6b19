"""Gradients at stages 1 and 2: taken from autograd into buckets, and scattered to their owners as backward still runs.

A dense layer's backward product adds the gradient of its weight to the bucket's float32 buffer by itself (`ops.dense`).
What autograd has accumulated of a parameter, a hook adds to the buffer and frees. The hook is called when the
parameter's gradient is complete, also where all of it is in the buffer already. A bucket whose parameters have all
reported is sent off at once, and the backward pass of the layers below goes on: only what the first layers and the
embeddings send is not hidden behind it.

Stage 1 (`StepReduction`) keeps a buffer for each bucket, adds up all micro-steps in it and sends it in the last one.
The sum is written next to the rank's own gradients, not over them. So a step that is skipped can still say which rank
had the NaN, and in which parameter.

Stage 2 (`MicroStepReduction`) keeps the sums of its own partitions alone: in every micro-step it fills a buffer for as
long as the bucket is computed and sent, and adds what arrives to the sum. It sends as many times more as a step has
micro-steps, and needs a few buckets of memory instead of all of them.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from megabert.config.deepspeed import IN_FLIGHT
from megabert.engine.buckets import Bucket, Collectives, Work
from megabert.ops.dense import add_product_, sum_products_in


class GradientReduction(ABC):
    """The gradients of one optimizer step at a time."""

    def __init__(self, buckets: Sequence[Bucket], collectives: Collectives) -> None:
        """Put a hook on every parameter.

        Args:
            buckets: In the order in which the forward pass uses them; they are sent in the opposite order.
            collectives: How they are sent.
        """
        self._buckets, self._collectives = buckets, collectives
        self._is_sending = False
        self._missing: list[int] = []
        self._fresh: list[set[str]] = [set() for _ in buckets]
        # A reduction is started on the same buckets in the same order on every rank, whatever the order in which the
        # backward pass completes them: this is the next one.
        self._next = len(buckets) - 1
        self._accumulations: list[Any] = []
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
        """Send what was not sent yet, wait for all of it, and return this rank's partitions of the sums.

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
        # The node that accumulates a gradient is run behind all uses of the parameter, also where all of them have
        # added products, so that there is nothing to accumulate. A parameter keeps it alive only as long as a graph.
        view: Any = parameter.view_as(parameter)
        accumulation = view.grad_fn.next_functions[0][0]
        self._accumulations.append(accumulation)
        accumulation.register_hook(lambda *_: self._take(parameter, index, name))
        sum_products_in(parameter, _Products(self, index, name))

    def _take(self, parameter: nn.Parameter, index: int, name: str) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None:
            view, is_first = self.place_of(index, name)
            view.copy_(gradient) if is_first else view.add_(gradient)
        self._missing[index] -= 1
        if self._is_sending:
            while self._next >= 0 and self._missing[self._next] == 0:
                self._send_next()

    def place_of(self, index: int, name: str) -> tuple[Tensor, bool]:
        """Return where a gradient is to be added, and whether it is the first: then it overwrites what is there.

        What is there is of an earlier use of the buffer: nothing is cleared in between.
        """
        is_first = name not in self._fresh[index]
        self._fresh[index].add(name)
        return self._views_of(index)[name], is_first

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


class _Products:
    """The sum of one weight's gradients, for dense layers to add to."""

    def __init__(self, reduction: GradientReduction, index: int, name: str) -> None:
        self._reduction, self._index, self._name = reduction, index, name

    def add_product(self, left_OT: Tensor, right_TI: Tensor) -> None:
        view_OI, is_first = self._reduction.place_of(self._index, self._name)
        add_product_(view_OI, left_OT, right_TI, is_first=is_first)


class StepReduction(GradientReduction):
    """Stage 1: local gradients are added up over micro-steps, and sent once."""

    def __init__(
        self, buckets: Sequence[Bucket], collectives: Collectives, buffers: Sequence[Tensor], *, overlaps: bool
    ) -> None:
        """Take the buffers.

        Args:
            buckets: As in ``GradientReduction``.
            collectives: Likewise.
            buffers: Where each bucket's gradients are added up: ``Bucket.zeros()``, in a world of one ``gradient_sum``.
            overlaps: Whether buckets are sent during the last backward pass, and not after it.
        """
        self._buffers, self._overlaps = buffers, overlaps
        self._views = [bucket.views(buffer) for bucket, buffer in zip(buckets, buffers, strict=True)]
        self._works: list[Work] = []
        super().__init__(buckets, collectives)

    def end_backward(self) -> None:
        """Do nothing."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters that have one, and this rank's own gradient, added up since the last update."""
        for views, fresh in zip(self._views, self._fresh, strict=True):
            yield from ((name, views[name]) for name in views if name in fresh)

    def finish(self) -> list[Tensor]:
        """Send the rest, and return the partitions of the sums."""
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
            self._works.append(self._collectives.reduce(bucket.gradient_sum, self._buffers[index]))


class MicroStepReduction(GradientReduction):
    """Stage 2: each micro-step's gradients are sent, and their sums added up by the owners."""

    def __init__(self, buckets: Sequence[Bucket], collectives: Collectives, *, overlaps: bool) -> None:
        """Allocate nothing: buffers come and go with the buckets.

        Args:
            buckets: As in ``GradientReduction``.
            collectives: Likewise.
            overlaps: Whether the backward pass goes on while a bucket is sent.
        """
        self._in_flight = IN_FLIGHT if overlaps else 0
        self._filling: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}
        self._under_way: deque[tuple[Work, Tensor, Tensor, Tensor]] = deque()
        self._has_sum = [False] * len(buckets)
        super().__init__(buckets, collectives)

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
        """Return the partitions of the sums, zeros before the first micro-step."""
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
        work = self._collectives.reduce(received, gradients)
        self._under_way.append((work, received, bucket.gradient_sum, gradients))
        self._land(self._in_flight)

    def _land(self, remaining: int) -> None:
        """Wait for the oldest reductions until so many are under way, and add up what they brought."""
        while len(self._under_way) > remaining:
            work, received, gradient_sum, _ = self._under_way.popleft()
            work.wait()
            if received is not gradient_sum:
                gradient_sum.add_(received)
