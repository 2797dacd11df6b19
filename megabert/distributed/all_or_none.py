"""Work that all ranks do, or rank 0 alone, and that fails on every rank if it fails on one."""

from collections.abc import Callable
from typing import TypeVar

from megabert.distributed.process_group import World
from megabert.errors import MegabertError

Result = TypeVar("Result")


def run_on_all_ranks(world: World, work: Callable[[], Result]) -> Result:
    """Run ``work`` on every rank and return the rank's own result; if it fails on any rank, fail on all.

    Raises:
        Exception: The rank's own error, or the first failing rank's. Only the first rank to report an error leaves it
            unmarked; its copies are marked ``is_echo``, so that a user reads it once.
    """
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    failures = world.gather(_portable(failure))
    first = next((rank for rank, found in enumerate(failures) if found is not None), None)
    if first is None:
        return result  # type: ignore[return-value]
    if failure is not None and (world.rank == first or str(failure) != str(failures[first])):
        raise failure
    echo = failures[first]
    assert echo is not None
    echo.is_echo = True
    raise echo


def run_on_main_rank(world: World, work: Callable[[], Result]) -> Result:
    """Run ``work`` on rank 0 and return its result (plain data) on every rank; if it fails, fail on all."""
    result = run_on_all_ranks(world, lambda: work() if world.is_main else None)
    return world.broadcast(result)  # type: ignore[no-any-return]


def _portable(failure: Exception | None) -> MegabertError | None:
    """Return an error that other ranks can raise."""
    if failure is None or isinstance(failure, MegabertError):
        return failure
    return MegabertError(f"{type(failure).__name__}: {failure}")
