"""The first failing rank's error is the one that the user reads.

A rank that fails says so on the store where the ranks found each other. The others, whose collectives then break or
wait for ever, find it there and leave without a word, with the same exit code.
"""

import contextlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator

import torch.distributed as dist

from megabert.command_line.failures import exit_code_of
from megabert.errors import Echo, MegabertError, cause_of

logger = logging.getLogger(__name__)

ARRIVED = "arrived"
"""Key that counts the ranks on their way out."""
_KEY = "failure"
_POLL_S = 1.0
_GRACE_S = 3.0
"""How long a rank that is told of a failure may take to notice by itself."""
_SILENCE_S = 3.0
"""How long a rank whose collective broke waits for another one's word."""
_LOST = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "ncclRemoteError",
    "remote process exited",
)


class RankFailed(Echo):
    """Another rank has failed and reports why; all that is known of its error is the text and the exit code."""

    def __init__(self, rank: int, exit_code: int, text: str) -> None:
        super().__init__(MegabertError(text))
        self.rank, self.exit_code = rank, exit_code


class FirstFailure:
    """Where the ranks of a world learn which of them failed first."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        """Bind the parts; ``store`` must outlive every other rank's last look at it."""
        self._store, self._rank, self._size = store, rank, size
        self._has_noticed = threading.Event()
        self.has_store = True
        """Whether the store still answered when it was last asked; it is gone with the rank that hosts it."""

    def report(self, error: BaseException) -> BaseException:
        """Return the error that this rank is to leave with: its own if it failed first, else an echo of the first.

        An error that follows from another rank's waits for that one a little.
        """
        self._has_noticed.set()
        if self._size == 1 or isinstance(error, RankFailed) or not isinstance(error, Exception):
            return error
        follows = isinstance(error, Echo) or _has_lost_a_rank(error)
        first = None
        try:
            if self.has_store:
                first = self._wait(_SILENCE_S if follows else 0.0) or self._publish(error)
        except Exception as lost:
            self._lose_store(lost)
        if first is not None and first.rank != self._rank:
            return first
        if _has_lost_a_rank(error):
            return MegabertError(
                f"rank {self._rank} lost another rank, which died without a word: killed (for lack of memory?), or its "
                f"node was lost. The same command goes on at the last checkpoint. What broke here: {_line_of(error)}"
            )
        return cause_of(error)  # of an echo whose cause was never reported, somebody has to speak

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """End this process where another rank has failed and the main thread, in a collective, does not notice."""
        thread = threading.Thread(target=self._watch, name="megabert-first-failure", daemon=True)
        if self._size > 1:
            thread.start()
        try:
            yield
        finally:
            self._has_noticed.set()
            if thread.is_alive():
                thread.join(_POLL_S)

    def _watch(self) -> None:
        try:
            while not self._has_noticed.wait(_POLL_S):
                first = self._find()
                if first is not None and not self._has_noticed.wait(_GRACE_S):
                    logger.info("leaving: rank %d has failed", first.rank)
                    self._arrive()
                    os._exit(first.exit_code)
        except Exception as lost:
            self._lose_store(lost)

    def _lose_store(self, error: Exception) -> None:
        self.has_store = False
        logger.debug("rank %d: %s", self._rank, error)

    def _arrive(self) -> None:
        self._store.add(ARRIVED, 1)
        deadline = time.monotonic() + _GRACE_S
        # Rank 0 may host the store: it goes last.
        while self._rank == 0 and self._store.add(ARRIVED, 0) < self._size and time.monotonic() < deadline:
            time.sleep(0.02)

    def _wait(self, seconds: float) -> RankFailed | None:
        deadline = time.monotonic() + seconds
        while (first := self._find()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return first

    def _find(self) -> RankFailed | None:
        return _read(self._store.get(_KEY)) if self._store.check([_KEY]) else None

    def _publish(self, error: BaseException) -> RankFailed:
        cause = cause_of(error)
        mine = json.dumps([self._rank, exit_code_of(cause), f"{type(cause).__name__}: {cause}"])
        return _read(self._store.compare_set(_KEY, "", mine))


def _read(content: bytes) -> RankFailed:
    rank, code, text = json.loads(content)
    return RankFailed(rank, code, text)


def _has_lost_a_rank(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _LOST)


def _line_of(error: BaseException) -> str:
    """Return what gloo or NCCL says, without its place in the source and its advice."""
    return re.sub(r"^\[[^\]]*\] |\. This is typically.*", "", str(error).splitlines()[0])
