"""Limits of time and size for the answers of a server: huggingface_hub waits, and reads, for as long as one sends.

Each call gets a connection of its own. A timer shuts that down, which ends a read that would wait for ever;
timeouts of the HTTP client alone start again with each byte.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from threading import Timer
from typing import Any

SILENCE_S = 30
"""Seconds without a byte from the server, or with none taken."""
CALL_S = 120
"""Seconds for a call, in addition to its upload."""
START_S = 600
"""Seconds for all calls, in addition to uploads."""
LEAST_BYTES_PER_S = 50_000
"""The slowest upload that is waited for."""
MOST_ANSWER_BYTES = 16 << 20
"""The largest answer, decompressed."""


class AnswerLimits:
    """The limits of one push after the other."""

    def __init__(self) -> None:
        """Begin without uploads."""
        self.begin(0)

    def begin(self, upload_bytes: int) -> None:
        """Start the clock for all calls that follow."""
        self.exceeded = ""
        """The first limit that was exceeded, in words."""
        self._ends = time.monotonic() + START_S + upload_bytes / LEAST_BYTES_PER_S

    def apply(self, client: Any) -> Any:
        """Return an HTTP client of huggingface_hub whose calls are limited."""
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [*hooks.get("request", ()), self._watch],
            "response": [*hooks.get("response", ()), self._bound],
        }
        client.timeout = SILENCE_S
        return client

    def _refuse(self, words: str) -> None:
        self.exceeded = self.exceeded or words
        raise ConnectionError(words)

    def _watch(self, request: Any) -> None:
        left = self._ends - time.monotonic()
        if left <= 0:
            self._refuse("all calls together took too long")
        seconds = CALL_S + int(request.headers.get("Content-Length") or 0) / LEAST_BYTES_PER_S
        request.headers["Connection"] = "close"  # so that the socket is known
        request.extensions["trace"] = _Watch(self, min(seconds, left))

    def _bound(self, response: Any) -> None:
        response.iter_raw = partial(self._counted, response.iter_raw)
        response.iter_bytes = partial(self._counted, response.iter_bytes)

    def _counted(self, read: Any, chunk_size: int | None = None) -> Iterator[bytes]:
        size = 0
        for part in read(chunk_size):
            size += len(part)
            if size > MOST_ANSWER_BYTES:
                self._refuse(f"the answer is larger than {MOST_ANSWER_BYTES >> 20} MiB")
            yield part


class _Watch:
    """Shuts the connection of one call down when its time is over. The client calls it with each event."""

    def __init__(self, limits: AnswerLimits, seconds: float) -> None:
        self._socket: socket.socket | None = None
        self._limits, self._seconds = limits, seconds
        self._timer = Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def __call__(self, event: str, info: dict[str, Any]) -> None:
        stream: Any = info.get("return_value")
        if hasattr(stream, "get_extra_info"):
            self._socket = stream.get_extra_info("socket")
        if event.endswith((".failed", "response_closed.complete")):
            self._timer.cancel()

    def _end(self) -> None:
        self._limits.exceeded = self._limits.exceeded or f"no whole answer within {self._seconds:.0f} s"
        if self._socket is not None:
            with suppress(OSError):  # it has just ended
                self._socket.shutdown(socket.SHUT_RDWR)
