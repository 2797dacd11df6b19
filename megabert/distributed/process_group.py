"""Process groups: how the ranks find each other, work and fail alike, and leave together on every way out.

Three things use collectives at the same time: the main thread, the loader's thread and the thread that writes
checkpoints. Collectives of one group are paired in the order of the calls, so that each thread has a group of its own.
"""

import contextlib
import datetime
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, TypeVar
from unittest.mock import patch

import torch
import torch.distributed as dist

from megabert.distributed.environments import describe_rank, find_launcher
from megabert.distributed.failure_propagation import ARRIVED, FirstFailure
from megabert.distributed.meeting import check_interfaces, meet
from megabert.distributed.parent_death import die_with_launcher
from megabert.foundation.errors import ConfigError, Echo, MegabertError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=30)  # torch's default for gloo; for NCCL it is 10
"""After this time gloo and NCCL give up a collective, and ranks the meeting at the start."""
WATCHED_TIMEOUT = datetime.timedelta(days=30)  # never, in effect
"""The same where a watchdog ends hangs, by limits that the user sets."""
EXIT_BARRIER_S = 120.0
"""How long a rank that is done waits for the other ranks."""
MESH_RANKS = 64
"""Up to this number of ranks, each connects to all others at once when they meet."""
PRODUCT_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
PRODUCTS_KEPT = "64"
"""How many matrix products in 16 bits oneDNN and torch's layer over it keep on a CPU, as plans and as code. Another
number of rows makes another product, and packed tokens bring one at each step: the 1,024 that they would keep take
gigabytes and are hardly ever used again."""
ALL_GPUS = (
    "Under SLURM ask with --gpus-per-node and without --gpus-per-task or --gpu-bind: a rank has to see all GPUs of its "
    "node."
)
"""Remedy for a rank that sees no GPU of its own: SLURM may show each task one alone, as number 0."""
FAILURE_BARRIER_S = 10.0
"""How long a rank with an error waits for the others, which often fail alike or learn of it soon."""


@dataclass(frozen=True, kw_only=True)
class World:
    """This rank, and the groups and the store that it shares with the other ranks."""

    rank: int
    """Number of this rank, from 0."""
    size: int
    """Number of ranks."""
    device: torch.device
    """Device that this rank computes on."""
    loader: dist.ProcessGroup
    """CPU collectives of the loader thread; nothing else may use it, or ranks would pair different calls."""
    control: dist.ProcessGroup
    """CPU collectives of the main thread: loading checkpoints, small agreements."""
    background: dist.ProcessGroup
    """CPU collectives of the thread that writes checkpoints."""
    store: dist.Store
    """Keys and values that all ranks see. They also meet here on the way out: unlike a collective, waiting on the store
    can be given up."""
    failures: FirstFailure
    """Which rank failed first."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which logs, draws bars and writes shared files."""
        return self.rank == 0

    def in_background(self) -> "World":
        """Return this world for the thread that writes checkpoints: its collectives never meet the main thread's."""
        return replace(self, control=self.background)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's ``value`` (plain data), in the order of ranks, on every rank."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's ``value`` (plain data) on every rank."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a small tensor over the ranks, in place, on its device; the main thread calls it."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def exchange(self, outgoing: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """Send each rank its part of a flat tensor; the main thread of every rank calls it.

        Args:
            outgoing: The parts, one after the other in the order of ranks.
            sent: Elements of each part.
            received: Elements that each rank sends here.

        Returns:
            The parts from all ranks, in the order of ranks.
        """
        incoming = outgoing.new_empty(sum(received))
        dist.all_to_all_single(incoming, outgoing, list(received), list(sent))
        return incoming


def run_on_all_ranks(world: World, work: Callable[[], Result]) -> Result:
    """Run ``work`` on every rank and return the rank's own result; if it fails on any rank, fail on all.

    A rank that raised alone would leave the other ranks waiting in their next collective. So before anybody raises, the
    ranks exchange what went wrong.

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


@contextlib.contextmanager
def distributed_world(
    device: Literal["auto", "cpu", "cuda"] = "auto", *, watchdog_start_s: float | None = None
) -> Iterator[World]:
    """Join the process group that a launcher described in the environment, or be alone without one.

    ``environments.LAUNCHERS`` lists the launchers that are understood: torchrun, ``deepspeed``, srun. Ranks die with
    their launcher. On leaving, all ranks meet at a barrier and destroy the group: when they simply ended, 5 of 18 clean
    runs aborted. Where one rank fails alone, the others end with ``RankFailed``, which has its exit code
    (``failure_propagation``).

    Args:
        device: ``auto`` takes a GPU if this machine has any.
        watchdog_start_s: Time limit of the start by the caller's watchdog, which ends later hangs, so that no
            collective is given up before; None if it has no watchdog.

    Raises:
        ConfigError: ``cuda`` on a machine without a GPU, this process sees fewer GPUs than local ranks, or the ranks
            are to meet at a place that does not exist or is taken.
        MeetingError: Not all ranks came.
    """
    with _callers_settings(), _environment() as (rank, size, local_rank):
        own_device = _device(device, local_rank)
        timeout = COLLECTIVE_TIMEOUT if watchdog_start_s is None else WATCHED_TIMEOUT
        patience_s = watchdog_start_s or COLLECTIVE_TIMEOUT.total_seconds()
        store = _start(rank, size, own_device, timeout, patience_s)
        failures = FirstFailure(store, rank, size)
        names = ("loader", "control", "background")
        groups = {name: dist.new_group(backend="gloo", timeout=timeout) for name in names}
        world = World(rank=rank, size=size, device=own_device, store=store, failures=failures, **groups)
        try:
            with world.failures.watching(), world.failures.reporting():
                yield world
        except BaseException:
            _leave(world, FAILURE_BARRIER_S)
            raise
        _leave(world, EXIT_BARRIER_S)


@contextlib.contextmanager
def _callers_settings() -> Iterator[None]:
    """Give a program that trains by the library its settings of torch, threads and the environment back."""
    backends: Any = torch.backends
    cuda, cpu = backends.cuda.matmul, backends.mkldnn.matmul
    settings = [(threading, "excepthook"), (cuda, "fp32_precision"), (cpu, "fp32_precision")]
    settings += [(cuda, f"allow_{dtype}_reduced_precision_reduction") for dtype in ("bf16", "fp16")]
    with contextlib.ExitStack() as kept:  # sets the last one first
        kept.callback(torch.set_num_threads, torch.get_num_threads())
        for owner, name in settings:
            kept.callback(setattr, owner, name, getattr(owner, name))
        with contextlib.suppress(RuntimeError):  # the caller has set the precision of one device alone
            kept.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        for name in ("DS_ACCELERATOR", *PRODUCT_CACHES):
            kept.callback(_set_variable, name, os.environ.get(name))
        yield


def _set_variable(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


def _portable(failure: Exception | None) -> MegabertError | None:
    """Return an error that can be sent to other ranks: other libraries' exceptions cannot always be pickled."""
    if failure is None or isinstance(failure, MegabertError):
        return failure
    return MegabertError(f"{type(failure).__name__}: {failure}")


@contextlib.contextmanager
def _environment() -> Iterator[tuple[int, int, int]]:
    """Yield (rank, size, local rank) and set the variables that deepspeed reads; die with the launcher, if any."""
    is_alone = find_launcher() is None
    if not is_alone:
        die_with_launcher()
    variables = describe_rank()
    os.environ.update(variables)
    try:
        yield int(variables["RANK"]), int(variables["WORLD_SIZE"]), int(variables["LOCAL_RANK"])
    finally:
        for name in variables if is_alone else ():  # a launched rank keeps them: its errors are reported later
            os.environ.pop(name, None)


def _device(requested: str, local_rank: int) -> torch.device:
    gpus = torch.cuda.device_count()
    if requested == "cpu" or (requested == "auto" and gpus == 0):
        for cache in PRODUCT_CACHES:
            os.environ.setdefault(cache, PRODUCTS_KEPT)
        return torch.device("cpu")
    if local_rank >= gpus:
        raise ConfigError(
            f"Local rank {local_rank} has no GPU: this process sees {gpus}. Start at most that many ranks here, or use "
            f"the CPU (--device cpu). {ALL_GPUS}",
            see="no-gpu-is-seen",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def prepare_gloo(size: int) -> None:
    """Let ranks of a large world connect to each other only when they first communicate.

    In a full mesh every rank reads the address of every other one from rank 0's store, for each group: 50 million
    reads of 4,096 ranks, and 12,285 sockets each.
    """
    if size > MESH_RANKS:
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")


def _start(rank: int, size: int, device: torch.device, timeout: datetime.timedelta, patience_s: float) -> dist.Store:
    """Start torch.distributed and deepspeed; return the store for the way out."""
    # One store for meeting and for the way out; torch's own groups get a part of it, under a prefix.
    check_interfaces()
    store: dist.Store = dist.HashStore() if size == 1 else meet(rank, size, patience_s=patience_s)
    store.set_timeout(COLLECTIVE_TIMEOUT)
    prepare_gloo(size)
    backend = "gloo" if device.type == "cpu" else "nccl"
    groups, gpu = dist.PrefixStore("groups", store), None if device.type == "cpu" else device
    dist.init_process_group(backend, store=groups, rank=rank, world_size=size, timeout=timeout, device_id=gpu)
    os.environ["DS_ACCELERATOR"] = device.type
    with without_compiler():
        import deepspeed  # seconds: only where training starts

    # DeepSpeed chooses the device of its models once: an earlier run of this process may have had another one.
    deepspeed.accelerator.real_accelerator.ds_accelerator = None
    deepspeed.accelerator.get_accelerator()
    # DeepSpeed would build its shared-memory collectives with a C++ compiler at first use; gloo needs none. Its table
    # of ops is given empty: to fill it, DeepSpeed tries compilers, and without nvcc a machine with a GPU gets a warning
    # on stdout for each CUDA op.
    deepspeed.ops.__compatible_ops__ = {}
    deepspeed.utils.logger.setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\..* is deprecated", category=FutureWarning)
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
    return dist.PrefixStore("exit", store)


def _leave(world: World, timeout_s: float) -> None:
    """Meet the other ranks and destroy the process groups, or abort them where the others do not come."""
    have_met = False
    try:
        have_met = world.failures.has_store and _meet(world, timeout_s)
    except Exception as error:  # rank 0 is gone, and the store with it
        logger.debug("rank %d: %s", world.rank, error)
    if not have_met:
        logger.warning("rank %d leaves without the others, which have died or are still at work", world.rank)
    import deepspeed

    if dist.is_initialized():
        if have_met or world.device.type == "cpu":
            deepspeed.comm.destroy_process_group()  # with deepspeed's own record of it, so that a later world can start
        else:  # destroying would wait for collectives that a dead rank never joins
            dist.distributed_c10d._abort_process_group()


def _meet(world: World, timeout_s: float) -> bool:
    """Wait on the store until every rank is here. A collective would wait for a dead rank until its timeout."""
    deadline = time.monotonic() + timeout_s
    world.store.add(ARRIVED, 1)
    while world.store.add(ARRIVED, 0) < world.size:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)  # a store can wait for a key, not for a count
    # Rank 0 may host the store, so it leaves last: when every rank has seen that all have come.
    world.store.add("saw", 1)
    while world.is_main and world.store.add("saw", 0) < world.size and time.monotonic() < deadline:
        time.sleep(0.02)
    return True


def _unmarked(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    """Return a function as it is, where a decorator of the compiler would wrap it."""
    return function


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Let the compiler's decorators return functions as they are, while DeepSpeed is imported or initialized.

    Nothing here is compiled by ``torch.compile``; docs/decisions.md says why. DeepSpeed marks functions for the
    compiler nevertheless, and marking the first one imports it: 1.3 CPU seconds, and with its backends 2.3.

    They are on three functions of its optimizer Muon, whose file every ZeRO stage imports to ask whether an optimizer
    is one, and on what ZeRO-3 runs before and after each module.
    """
    with (
        patch.object(torch, "compile", _unmarked),
        patch.object(torch, "_disable_dynamo", _unmarked),
        patch.object(torch.compiler, "disable", _unmarked),
    ):
        yield
