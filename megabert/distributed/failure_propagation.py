"""The user reads the error of the first rank that fails.

Where one rank fails, the others fail too, a moment later and with worse messages: their collectives break ("Connection
closed by peer"), or wait for ever. A user needs the cause, once. So a rank that fails writes its error to the store
through which the ranks met, unless another one has written there before. The others read it there and end in silence,
with the same exit code:

- a rank whose collective broke raises ``RankFailed`` in place of its own error (``FirstFailure.report``);
- a rank whose collective hangs is ended by a thread that looks at the store every second (``FirstFailure.watching``),
  after the checkpoint that it may be writing;
- where a rank died without a word (killed by the kernel, node lost), the first rank that notices says that.
"""

import contextlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator

import torch.distributed as dist

from megabert.foundation.errors import EXIT_HUNG, EXIT_KILLED, Echo, MegabertError, cause_of
from megabert.settings.command_line.failures import exit_code_of

logger = logging.getLogger(__name__)

ARRIVED = "arrived"
"""Key that counts the ranks on their way out."""
_KEY = "failure"
"""Key that holds the first error: rank, exit code and text as JSON."""
_POLL_S = 1.0
"""How often the thread looks at the store."""
_GRACE_S = 3.0
"""How long a rank may take to notice another rank's failure by itself, before the thread ends it."""
_SILENCE_S = 3.0
"""How long a rank whose collective broke waits for the failing rank to write its error."""
_LOST = re.compile("gloo/transport|Connection (closed|reset) by peer|Broken pipe|ncclRemoteError|remote process exited")
"""Phrases in the errors of gloo and NCCL which mean that another rank is gone."""


class RankFailed(Echo):
    """Another rank has failed and reports why; all that is known of its error is the text and the exit code."""

    def __init__(self, rank: int, exit_code: int, text: str) -> None:
        super().__init__(MegabertError(text))
        self.rank, self.exit_code = rank, exit_code


class LostRankError(MegabertError):
    """Another rank died without a word: it was killed, or its node was lost. The same command resumes."""

    exit_code = EXIT_KILLED


class HungError(MegabertError):
    """A collective was given up: another rank never came to it."""

    exit_code = EXIT_HUNG


class FirstFailure:
    """Where the ranks of a world learn which of them failed first."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        """Bind the parts. ``store`` must live until every other rank has looked at it for the last time."""
        self._store, self._rank, self._size = store, rank, size
        self._has_noticed = threading.Event()
        self.has_store = True
        """Whether the store still answered when it was last asked; it is gone with the rank that hosts it."""
        self.finish_writing: Callable[[], object] = lambda: None
        """The thread calls this before it ends the process. The ranks write a checkpoint together: the failing rank
        waits until a write that has begun is complete, because a launcher ends all ranks as soon as one ends."""

    def report(self, error: BaseException) -> BaseException:
        """Return the error that this rank has to end with: its own if it failed first, else an echo of the first.

        Call it with every error that leaves the world. An error that follows from another rank's (an echo, a broken
        connection) waits a little for that one to be written, since news of it may arrive before the cause.
        """
        self._has_noticed.set()
        if self._size == 1 or isinstance(error, RankFailed) or not isinstance(error, Exception):
            return error
        own = self._own(error)
        # An error that follows from another rank's gives that rank a little time to say why; a first one is published.
        follows = isinstance(error, Echo) or _has_lost_a_rank(error)
        first = None
        try:
            # Publishing compares and sets: of ranks that fail at the same time, one wins and the others learn which.
            if self.has_store:
                first = self._wait(_SILENCE_S if follows else 0.0) or self._publish(own)
        except Exception as lost:
            self._lose_store(lost)
        return own if first is None or first.rank == self._rank else first

    def _own(self, error: BaseException) -> BaseException:
        """Return the error that this rank reports if no other one does: its own, or why a collective broke."""
        if _has_lost_a_rank(error) and "Timed out" in str(error):
            return HungError(
                f"rank {self._rank} waited in vain for another rank, which lives and does not come: look at its "
                f"machine and its files. What broke here: {_line_of(error)}"
            )
        if _has_lost_a_rank(error):
            lost_rank = (
                "lost another rank, which died without a word: killed (for lack of memory?), or its node was lost"
            )
            resumes = "The same command resumes at the last checkpoint"
            return LostRankError(f"rank {self._rank} {lost_rank}. {resumes}. What broke here: {_line_of(error)}")
        return cause_of(error)  # of an echo whose cause was never reported, somebody has to speak

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Report an error of the block before anything outside of the block is closed, and raise what `report` returns.

        Closing may take minutes. Without news the other ranks would take this one for hanging, and record that.
        """
        try:
            yield
        except BaseException as error:
            first = self.report(error)
            if first is error:
                raise
            raise first from error

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """End this process if another rank has failed and the main thread, waiting in a collective, does not notice."""
        thread = threading.Thread(target=self._watch, name="megabert-first-failure", daemon=True)
        if self._size > 1:
            thread.start()
        try:
            yield
        finally:
            self._has_noticed.set()
            if thread.is_alive():
                thread.join(_POLL_S)  # at once, unless it is asking a store that does not answer

    def _watch(self) -> None:
        try:
            while not self._has_noticed.wait(_POLL_S):
                first = self._find()
                if first is None or self._has_noticed.wait(_GRACE_S):
                    continue
                self.finish_writing()
                if not self._has_noticed.is_set():
                    logger.info("leaving: rank %d has failed", first.rank)
                    self._arrive()
                    os._exit(first.exit_code)  # only this ends a process whose main thread sits in a collective
        except Exception as lost:
            self._lose_store(lost)

    def _lose_store(self, error: Exception) -> None:
        self.has_store = False
        logger.debug("rank %d: %s", self._rank, error)

    def _arrive(self) -> None:
        """Count this rank among those on their way out, as ``process_group`` does at the exit."""
        self._store.add(ARRIVED, 1)
        deadline = time.monotonic() + _GRACE_S
        # Rank 0 may host the store, so it leaves last.
        while self._rank == 0 and self._store.add(ARRIVED, 0) < self._size and time.monotonic() < deadline:
            time.sleep(0.02)  # a store can wait for a key, not for a count

    def _wait(self, seconds: float) -> RankFailed | None:
        deadline = time.monotonic() + seconds
        while (first := self._find()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return first

    def _find(self) -> RankFailed | None:
        return _read(self._store.get(_KEY)) if self._store.check([_KEY]) else None

    def _publish(self, error: BaseException) -> RankFailed:
        mine = json.dumps([self._rank, exit_code_of(error), f"{type(error).__name__}: {error}"])
        return _read(self._store.compare_set(_KEY, "", mine))


def _read(content: bytes) -> RankFailed:
    rank, code, text = json.loads(content)
    return RankFailed(rank, code, text)


def _has_lost_a_rank(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None


def _line_of(error: BaseException) -> str:
    """Return the message of gloo or NCCL without the source line before it and the advice after it."""
    return re.sub(r"^\[[^\]]*\] |\. This is typically.*", "", str(error).splitlines()[0])
