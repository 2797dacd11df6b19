"""Work that all ranks do, or rank 0 alone, and that fails on every rank if it fails on one.

A rank that raised alone would leave the other ranks waiting in their next collective. So before anybody raises, the
ranks exchange what went wrong.
"""

from collections.abc import Callable
from typing import NoReturn, TypeVar

from megabert.distributed.process_group import World
from megabert.errors import Echo, MegabertError

Result = TypeVar("Result")


def run_on_all_ranks(world: World, work: Callable[[], Result]) -> Result:
    """Run ``work`` on every rank and return the rank's own result; if it fails on any rank, fail on all.

    Raises:
        Exception: The rank's own error.
        Echo: The error of the first failing rank, where this rank has none or the same.
    """
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    # The gather is the point where all ranks have done their work, whether it succeeded or not.
    failures = world.gather(_portable(failure))
    first = next((rank for rank, error in enumerate(failures) if error is not None), None)
    if first is None:
        return result  # type: ignore[return-value]
    # An error of another kind than the first one is worth reading as well; the same on every rank is read once.
    if failure is not None and (world.rank == first or str(failure) != str(failures[first])):
        raise failure
    cause = failures[first]
    assert cause is not None
    raise Echo(cause)


def run_on_main_rank(world: World, work: Callable[[], Result]) -> Result:
    """Run ``work`` on rank 0 and return its result (plain data) on every rank; if it fails, fail on all."""
    result = run_on_all_ranks(world, lambda: work() if world.is_main else None)
    return world.broadcast(result)  # type: ignore[no-any-return]


def raise_everywhere(world: World, error: MegabertError) -> NoReturn:
    """Raise an error that every rank has come to alike: rank 0 reports it, the other ranks echo it."""
    raise error if world.is_main else Echo(error)


def _portable(failure: Exception | None) -> MegabertError | None:
    """Return an error that can be sent to other ranks: other libraries' exceptions cannot always be pickled."""
    if failure is None or isinstance(failure, MegabertError):
        return failure
    return MegabertError(f"{type(failure).__name__}: {failure}")
