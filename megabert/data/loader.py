"""The loader: a side thread packs the batch of the next step while the ranks train on the current one."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

import torch

from megabert.data.mixture import Positions
from megabert.data.step_packer import StepBatch, StepPacker
from megabert.foundation.errors import DataError, Echo

_STOP = 1
_FAILED = 2


class StepTotals(NamedTuple):
    """The counts that ranks compare before each step."""

    masked: int = 0
    """Positions to predict; agreeing sums them over ranks."""
    instances: int = 0
    """Instances; agreeing sums them over ranks."""
    micro_steps: int = 0
    """Micro-batches; agreeing takes the maximum."""
    stop: int = 0
    """1 asks to stop, 2 says that this rank's loader failed; agreeing takes the maximum."""


Agree = Callable[[StepTotals], StepTotals]
"""Takes this rank's totals and returns the totals of all ranks."""


class PackedLoader(Iterator[StepBatch], AbstractContextManager["PackedLoader"]):
    """Iterator of ``StepBatch``; a global batch is the same set of instances whatever the ranks and the packing.

    The thread makes the batch of the next step while the current one is consumed, never more, so that little data is
    read in vain when the run stops (of several sources, the rows of some further batches). Close the loader (or leave
    the ``with`` block) on every way out.
    """

    def __init__(
        self,
        packer: StepPacker,
        *,
        positions: Positions | None = None,
        first_number: int = 1,
        num_steps: int | None = None,
        agree: Agree | None = None,
    ) -> None:
        """Start the thread.

        Args:
            packer: Makes the batches.
            positions: Where to start in each build; by default the first instance of epoch 0.
            first_number: Number of the first batch.
            num_steps: Batches to yield; None never ends.
            agree: Agreement over ranks, called on the side thread once per step; None for a single rank.
        """
        self._packer = packer
        self._agree = agree
        # Page-locked memory belongs to a device's context; a new thread would open one on device 0 for every rank.
        self._device = torch.cuda.current_device() if packer.share.pin else None
        self._stop_requested = threading.Event()
        # Taking a batch grants the thread one more. It waits for that, instead of for room in a queue, so that closing
        # can wake it.
        self._turn = threading.Condition()
        self._granted = 1  # batches that the thread may make in all
        self._closed = False
        self._results: queue.SimpleQueue[StepBatch | BaseException] = queue.SimpleQueue()
        self._ended: BaseException | None = None
        arguments = (positions or {}, first_number, num_steps)
        self._thread = threading.Thread(target=self._work, args=arguments, name="megabert-loader", daemon=True)
        self._thread.start()

    def __next__(self) -> StepBatch:
        """Wait for the next batch, and let the thread make the one after it.

        Raises:
            StopIteration: After ``num_steps`` batches, or when closed.
            Exception: Whatever stopped the thread; again on every later call.
        """
        if self._ended is None:
            result = StopIteration() if self._closed else self._results.get()  # blocks until it is made
            if isinstance(result, StepBatch):
                with self._turn:
                    self._granted += 1
                    self._turn.notify()
                return result
            self._ended = result
        raise self._ended

    def __exit__(self, *_: object) -> None:
        self.close()

    def request_stop(self) -> None:
        """Ask all ranks to stop: a batch made soon, the same one on every rank, has ``stop`` set."""
        self._stop_requested.set()

    def close(self, timeout_s: float | None = 30.0) -> None:
        """End the thread and wait for it.

        With several ranks the step that was granted last is still agreed upon, since the other ranks wait for this one
        in the collective. If they died, the wait ends after ``timeout_s``, and the daemon thread ends with the process.
        """
        with self._turn:
            self._closed = True
            self._turn.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _work(self, positions: Positions, first_number: int, num_steps: int | None) -> None:
        """Make batches, each when its turn comes; the last thing in the queue is what ended the thread."""
        count = 0
        end: BaseException = StopIteration()
        try:
            if self._device is not None:
                torch.cuda.set_device(self._device)
            while count != num_steps and self._wait_for_turn(count):
                batch = self._make(positions, first_number + count)
                self._results.put(batch)
                positions, count = batch.positions_after, count + 1
        except BaseException as error:  # handed to the consumer, which raises it
            end = error
        self._results.put(end)

    def _wait_for_turn(self, count: int) -> bool:
        """Wait until batch ``count`` is granted or the loader is closed; return whether it is to be made."""
        with self._turn:
            self._turn.wait_for(lambda: self._closed or self._granted > count)
            # With other ranks a granted batch is made even after closing: they wait for this rank to agree on it.
            return self._granted > count and (not self._closed or self._agree is not None)

    def _make(self, positions: Positions, number: int) -> StepBatch:
        """Make one batch and agree on it with the other ranks."""
        try:
            batch = self._packer.pack(positions, number)
            is_stop = self._stop_requested.is_set()
        except BaseException:
            if self._agree is not None:  # the other ranks would wait in the collective for ever
                self._agree(StepTotals(stop=_FAILED))
            raise
        if self._agree is None:
            return replace(batch, stop=is_stop)
        mine = StepTotals(
            masked=sum(micro_batch.num_masked for micro_batch in batch.micro_batches),
            instances=sum(micro_batch.num_instances for micro_batch in batch.micro_batches),
            micro_steps=len(batch.micro_batches),
            stop=_STOP if is_stop else 0,
        )
        agreed = self._agree(mine)
        if agreed.stop >= _FAILED:
            raise Echo(
                DataError(f"batch {number}: the loader of another rank failed; the error is in that rank's log.")
            )
        # The shares must add up to the global batch that this rank planned, or the plans differ. Masks that are made
        # while loading are no part of the plan.
        planned_masked = batch.num_masked if self._packer.shards.first.has_masks else agreed.masked
        if agreed[:3] != (planned_masked, batch.num_instances, mine.micro_steps):
            raise DataError(
                f"rank {self._packer.share.rank}, batch {number}: all ranks together have {agreed.instances} "
                f"instances, {agreed.masked} masked positions and up to {agreed.micro_steps} micro-steps, but this "
                f"rank's shards give {batch.num_instances}, {planned_masked} and {mine.micro_steps}. The ranks read "
                f"different shards or settings: give all nodes the same {self._packer.shards.first.place}."
            )
        return replace(batch, num_masked=agreed.masked, stop=agreed.stop >= _STOP)
