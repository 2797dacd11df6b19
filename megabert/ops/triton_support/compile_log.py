"""Names every kernel that Triton compiles or reads from its cache on the disk: a step in which it does stands still.

A kernel is compiled again for another dtype, another constant, and an integer that becomes 1 or a multiple of 16.
"""

import logging
from typing import Any

logger = logging.getLogger(__name__)
_names: list[str] = []


def log_compilations() -> None:
    """Begin to log what Triton compiles in this process; again is the same as once."""
    from triton import knobs

    if knobs.compilation.listener is None:
        knobs.compilation.listener = _log


def compiled_kernels() -> list[str]:
    """Return the names of all kernels so far, in order; a kernel is there once for each of its compilations."""
    return list(_names)


def _log(*, metadata: dict[str, Any], times: Any, cache_hit: bool, **_: Any) -> None:
    """Log a compilation, as Triton reports it; its times are microseconds."""
    _names.append(metadata["name"])
    done = "read from Triton's cache" if cache_hit else "compiled"
    logger.debug("kernel %s: %s in %.2f s", metadata["name"], done, times.total / 1e6)
