"""Gradients at stages 1 and 2: taken from autograd into buckets, and scattered to their owners as backward still runs.

A dense layer's backward product adds the gradient of its weight to the bucket's float32 buffer by itself (`ops.dense`).
A hook adds the gradients that autograd has accumulated to the buffer and frees them. It is called when the parameter's
gradient is complete, also if all of it is in the buffer already. A bucket whose parameters have all reported is sent at
once, while the backward pass of the layers below continues. Only the buckets of the first layers and the embeddings
have nothing left to overlap with.

Stage 1 (`StepReduction`) keeps a buffer for each bucket, adds up all micro-steps in it and sends it in the last one.
The sum is written next to the rank's own gradients, not over them. So a step that is skipped can still say which rank
had the NaN, and in which parameter.

Stage 2 (`MicroStepReduction`) keeps the sums of its own partitions alone: in every micro-step it fills a buffer
while the bucket is computed and sent, and adds the result to the sum. With n micro-steps per step it sends n times the
bytes of stage 1, and needs the memory of a few buckets instead of all of them.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megabert.engine.buckets import Bucket
from megabert.ops.dense import add_product_, sum_products_in
from megabert.settings.config.deepspeed import IN_FLIGHT


class GradientReduction(ABC):
    """The gradients of one optimizer step at a time."""

    def __init__(self, buckets: Sequence[Bucket], *, overlaps: bool) -> None:
        """Put a hook on every parameter.

        Args:
            buckets: In the order in which the forward pass uses them; they are sent in the opposite order.
            overlaps: Whether the backward pass continues while buckets are sent.
        """
        self._buckets, self._overlaps = buckets, overlaps
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
        self._missing = [len(bucket.parameters) for bucket in self._buckets]

    def end_backward(self) -> None:  # noqa: B027
        """Finish a backward pass."""

    @abstractmethod
    def finish(self) -> list[Tensor]:
        """Send the remaining buckets, wait for all of them, and return this rank's partitions of the sums.

        On a GPU it is the stream that waits, not the host.
        """

    @abstractmethod
    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names of parameters and all that this rank has of their gradients."""

    @abstractmethod
    def forget(self) -> None:
        """Begin a new step: the next backward pass overwrites the buffers."""

    @abstractmethod
    def _views_of(self, index: int) -> dict[str, Tensor]:
        """Return the buffers that the gradients of a bucket's parameters are added up in."""

    @abstractmethod
    def _send(self, index: int) -> None:
        """Start the reduction of a bucket; gloo and NCCL have threads and streams of their own for it."""

    def _take_gradients_of(self, parameter: nn.Parameter, index: int, name: str) -> None:
        """Install the hooks of a parameter: ``_take``, and ``_add_product`` for a dense layer's weight."""
        # The node that accumulates a gradient runs after all uses of the parameter, also if all of them have added
        # products, so that there is nothing to accumulate. A parameter keeps it alive only as long as a graph.
        view: Any = parameter.view_as(parameter)
        accumulation = view.grad_fn.next_functions[0][0]
        self._accumulations.append(accumulation)
        accumulation.register_hook(lambda *_: self._take(parameter, index, name))
        sum_products_in(parameter, partial(self._add_product, index, name))

    def _take(self, parameter: nn.Parameter, index: int, name: str) -> None:
        """Add an accumulated gradient to its sum, and send the buckets that it completes: autograd calls it."""
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None:
            view, is_first = self._place_of(index, name)
            view.copy_(gradient) if is_first else view.add_(gradient)
        self._missing[index] -= 1
        if self._is_sending:
            while self._next >= 0 and self._missing[self._next] == 0:
                self._send_next()

    def _add_product(self, index: int, name: str, left_OT: Tensor, right_TI: Tensor) -> None:
        """Add a product to a weight's sum, or begin with it."""
        view_OI, is_first = self._place_of(index, name)
        add_product_(view_OI, left_OT, right_TI, is_first=is_first)

    def _place_of(self, index: int, name: str) -> tuple[Tensor, bool]:
        """Return the sum that a gradient is added to, and whether it is the first one, which overwrites the sum.

        The buffer holds sums of an earlier step, since nothing is cleared in between.
        """
        is_first = name not in self._fresh[index]
        self._fresh[index].add(name)
        return self._views_of(index)[name], is_first

    def _send_next(self) -> None:
        """Send the next bucket, with zeros for parameters that no gradient came for."""
        views = self._views_of(self._next)
        for name in views.keys() - self._fresh[self._next]:  # in no graph: these sums are older
            views[name].zero_()
        self._send(self._next)
        self._next -= 1

    def _send_rest(self) -> None:
        while self._next >= 0:
            self._send_next()

    def _start_over(self) -> None:
        """Expect first gradients again, which overwrite the sums."""
        self._next = len(self._buckets) - 1
        for fresh in self._fresh:
            fresh.clear()


class StepReduction(GradientReduction):
    """Stage 1: local gradients are added up over micro-steps, and sent once, in the last backward pass or after it."""

    def __init__(self, buckets: Sequence[Bucket], *, overlaps: bool) -> None:
        """Allocate a buffer for each bucket."""
        self._buffers = [bucket.local_buffer() for bucket in buckets]
        self._views = [bucket.views(buffer) for bucket, buffer in zip(buckets, self._buffers, strict=True)]
        self._works: list[dist.Work] = []
        super().__init__(buckets, overlaps=overlaps)

    def begin_backward(self, *, is_last: bool) -> None:
        """Expect a backward pass."""
        super().begin_backward(is_last=is_last)
        self._is_sending = is_last and self._overlaps

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters that have one, and this rank's own gradient, added up since the last update."""
        for views, fresh in zip(self._views, self._fresh, strict=True):
            yield from ((name, views[name]) for name in views if name in fresh)

    def finish(self) -> list[Tensor]:
        """Send the rest, and return the partitions of the sums."""
        self._send_rest()
        for work in self._works:
            work.wait()  # under NCCL the stream waits and the host continues; under gloo the host waits
        self._works.clear()
        return [bucket.gradient_sum for bucket in self._buckets]

    def forget(self) -> None:
        """Begin a new step, also if the previous step was given up after its last backward pass."""
        if self._works:
            self.finish()
        self._start_over()

    def _views_of(self, index: int) -> dict[str, Tensor]:
        return self._views[index]

    def _send(self, index: int) -> None:
        bucket = self._buckets[index]
        if not bucket.is_alone:
            self._works.append(bucket.reduce(self._buffers[index], bucket.gradient_sum))


class MicroStepReduction(GradientReduction):
    """Stage 2: each micro-step's gradients are sent, and their sums added up by the owners.

    Buffers come and go with the buckets. Without overlap, each reduction is waited for before the next one begins.
    """

    def __init__(self, buckets: Sequence[Bucket], *, overlaps: bool) -> None:
        """Allocate nothing yet."""
        self._filling: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}
        self._under_way: deque[tuple[dist.Work, Tensor, Tensor, Tensor]] = deque()
        self._has_sum = [False] * len(buckets)
        super().__init__(buckets, overlaps=overlaps)
        self._is_sending = True

    def begin_backward(self, *, is_last: bool) -> None:
        """Expect a backward pass, and discard the rest of an abandoned one."""
        self._filling.clear()
        self._start_over()
        super().begin_backward(is_last=is_last)

    def end_backward(self) -> None:
        """Send the buckets for which no gradient came, so that all ranks send the same ones."""
        self._send_rest()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's fragments of the reduced gradients."""
        self.finish()
        for bucket in self._buckets:
            for fragment in bucket.fragments:
                yield fragment.parameter, fragment.view(bucket.gradient_sum)

    def finish(self) -> list[Tensor]:
        """Return the partitions of the sums, zeros before the first micro-step."""
        self._wait_until_in_flight(0)
        for bucket, has_sum in zip(self._buckets, self._has_sum, strict=True):
            if not has_sum:
                bucket.gradient_sum.zero_()
        return [bucket.gradient_sum for bucket in self._buckets]

    def forget(self) -> None:
        """Begin a new step: the first micro-step's sums replace the present ones."""
        self._wait_until_in_flight(0)
        self._has_sum = [False] * len(self._buckets)

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
        received = bucket.gradient_sum if is_first else torch.empty_like(bucket.gradient_sum)  # added when it is there
        work = bucket.reduce(gradients, received)
        self._under_way.append((work, received, bucket.gradient_sum, gradients))  # gradients live until they are sent
        self._wait_until_in_flight(IN_FLIGHT if self._overlaps else 0)

    def _wait_until_in_flight(self, remaining: int) -> None:
        """Wait for the oldest reductions until ``remaining`` are under way, and add up their results."""
        while len(self._under_way) > remaining:
            work, received, gradient_sum, _ = self._under_way.popleft()
            work.wait()  # under NCCL the stream alone, and with it the addition below
            if received is not gradient_sum:
                gradient_sum.add_(received)
