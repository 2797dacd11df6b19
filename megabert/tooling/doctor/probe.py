"""Do the ranks of a job find each other, and is their sum right? Tried before DeepSpeed, with short timeouts.

A collective that one rank does not join hangs on all the others, so ranks first meet without one: every rank writes
its host and its findings into a key-value store, and rank 0 sees who is missing. If nobody is,
each backend all-reduces, and every rank writes how that went. Rank 0 collects and publishes the answers.
"""

import contextlib
import datetime
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from megabert.distributed.environments import describe_rank
from megabert.foundation.errors import ConfigError

MEETING_S = 120.0
"""How long rank 0 waits for the others. Importing torch from a shared disk takes long on many nodes."""
COLLECTIVE_S = 60.0
"""How long an all-reduce may take."""
LOCAL_S = 180.0
"""How long ranks that are started here may take, from Python's start to their answer."""
_NUMEL = 4 * 2**20  # float32: 16 MiB
_LEAVING_S = 10.0
_hosted: list[dist.Store] = []
"""What rank 0 listens with, until the process ends: with ``--prove`` the ranks meet a second time at the same port, and
one that is early would be cut off if this server closed under it. ``multi_tenant`` lets torch take it over."""


class Answer(NamedTuple):
    """What one rank has answered."""

    rank: int
    host: str = "?"
    local: Any = None
    """The findings of its own host; None if the rank never came."""
    collectives: dict[str, str] | None = None
    """What went wrong, by backend or further check; "" if nothing did. None if the rank never answered."""
    all_reduce_ms: dict[str, float] | None = None
    """Milliseconds of the second all-reduce, by backend."""

    @property
    def has_come(self) -> bool:
        """Whether the rank reached the meeting point."""
        return self.local is not None

    @property
    def place(self) -> str:
        """Host and rank, as findings name them."""
        return f"{self.host} (rank {self.rank})"


Checks = Mapping[str, Callable[[], None]]


def probe_world(local: Any, *, device: str, checks: Checks | None = None, meeting_s: float = MEETING_S) -> list[Answer]:
    """Meet the other ranks of this job and all-reduce with them.

    Args:
        local: Findings of this rank as JSON values, which the other ranks get.
        device: ``cpu`` tries gloo, ``cuda`` gloo and NCCL.
        checks: Checks that each rank runs once all have come. Their exceptions are part of the answer.
        meeting_s: How long to wait for ranks that do not come.

    Returns:
        The answers in the order of ranks, the same on every rank. If any rank did not come, nothing was reduced.

    Raises:
        ConfigError: The meeting point of rank 0 cannot be reached.
    """
    environment = describe_rank()
    rank, size, local_rank = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    store = _open_store(environment, meeting_s)
    # Who is there?
    mine = {"host": _own_host(), "local": local}
    have_come = _gather(store, "here", mine, rank=rank, size=size, timeout_s=meeting_s)
    # If all are: do the collectives work?
    reduced: dict[str, Any] = {}
    if len(have_come) == size:
        outcomes = {
            backend: _outcome(partial(_reduce, store, backend, rank=rank, size=size, local_rank=local_rank))
            for backend in (("gloo",) if device == "cpu" else ("gloo", "nccl"))
        } | {name: _outcome(check) for name, check in (checks or {}).items()}
        mine = {
            "collectives": {name: problem for name, (problem, _) in outcomes.items()},
            "all_reduce_ms": {name: took_ms for name, (_, took_ms) in outcomes.items() if took_ms is not None},
        }
        patience_s = 2 * COLLECTIVE_S + _LEAVING_S
        reduced = _gather(store, "reduced", mine, rank=rank, size=size, timeout_s=patience_s)
    _leave(store, rank, size)
    return [Answer(rank=n, **have_come.get(str(n), {}), **reduced.get(str(n), {})) for n in range(size)]


def probe_locally(ranks: int, *, device: str) -> list[Answer]:
    """Start ranks on this machine and have them meet and all-reduce; they have ended when this returns."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    environment["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # torchrun's agent does not listen on this port
    command = [sys.executable, "-m", "megabert.tooling.doctor.probe", device]
    ranked = [{**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    start = partial(subprocess.Popen, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    processes = [start(env=own) for own in ranked]
    try:
        shown, errors = processes[0].communicate(timeout=LOCAL_S)
        return [Answer(**answer) for answer in json.loads(shown.splitlines()[-1])]
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        last = "no answer in time" if processes[0].returncode is None else (errors.strip().splitlines() or ["?"])[-1]
        host, collectives = _own_host(), {"start": last}
        return [Answer(rank=rank, host=host, local={}, collectives=collectives) for rank in range(ranks)]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _own_host() -> str:
    """Return this host's name as SLURM lists it, which ``judge`` compares; the host name is often fully qualified."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _open_store(environment: dict[str, str], meeting_s: float) -> dist.Store:
    if environment["WORLD_SIZE"] == "1":
        return dist.HashStore()
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun listens on the port itself
    is_host = environment["RANK"] == "0" and not has_agent
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    if not is_host:
        _wait_for_host(address, port, environment["RANK"], meeting_s)
    timeout = datetime.timedelta(seconds=meeting_s)
    store = dist.TCPStore(address, port, is_master=is_host, timeout=timeout, wait_for_workers=False, multi_tenant=True)
    if is_host:
        _hosted.append(store)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store outlives ranks that it restarts
    return dist.PrefixStore(f"megabert-probe/{attempt}", store)


def _wait_for_host(address: str, port: int, rank: str, meeting_s: float) -> None:
    """Return once rank 0 listens. Torch's own client would report a failure in fifty lines of C++."""
    deadline = time.monotonic() + meeting_s
    while True:
        try:
            socket.create_connection((address, port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{socket.gethostname()} (rank {rank}): rank 0 at MASTER_ADDR={address}, MASTER_PORT={port} cannot "
                    f"be reached: {error}. Check that its node is well, that the name means the same host on every "
                    "node, and that no firewall is between them.",
                    see="ranks-do-not-find-each-other",
                ) from None
        time.sleep(0.2)


def _gather(store: dist.Store, kind: str, value: Any, *, rank: int, size: int, timeout_s: float) -> dict[str, Any]:
    """Return the values of all ranks that gave one in time, by rank; rank 0 collects and publishes them."""
    store.set(f"{kind}/{rank}", json.dumps(value))
    if rank == 0:
        store.set(kind, json.dumps(_collect(store, kind, size, timeout_s)))
    store.wait([kind], datetime.timedelta(seconds=timeout_s + _LEAVING_S))
    return json.loads(store.get(kind))  # type: ignore[no-any-return]


def _collect(store: dist.Store, kind: str, size: int, timeout_s: float) -> dict[int, Any]:
    """Return the values that ranks wrote under ``kind``; ranks that wrote nothing in time are left out."""
    deadline = time.monotonic() + timeout_s
    values: dict[int, Any] = {}
    while len(values) < size and time.monotonic() < deadline:
        for rank in range(size):
            if rank not in values and store.check([f"{kind}/{rank}"]):
                values[rank] = json.loads(store.get(f"{kind}/{rank}"))
        if len(values) < size:
            time.sleep(0.05)
    return values


def _outcome(check: Callable[[], float | None]) -> tuple[str, float | None]:
    """Return the error, or "", and the result of a check. Any exception of a check is an answer."""
    try:
        return "", check()
    except Exception as error:
        return f"{type(error).__name__}: {(str(error) or '?').splitlines()[0]}", None


def _reduce(store: dist.Store, backend: str, *, rank: int, size: int, local_rank: int) -> float:
    """All-reduce twice and check the sum; return the milliseconds of the second time."""
    device = torch.device("cuda", local_rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    timeout = datetime.timedelta(seconds=COLLECTIVE_S)
    own_store = dist.PrefixStore(backend, store)
    dist.init_process_group(backend, store=own_store, rank=rank, world_size=size, timeout=timeout)
    try:
        for _ in range(2):  # the first one opens connections
            values = torch.full((_NUMEL,), float(rank + 1), device=device)
            started = time.perf_counter()
            _finish(dist.all_reduce(values, async_op=True), device)
            elapsed_ms = 1000 * (time.perf_counter() - started)
        # Rank r contributes r + 1, so that a rank that is left out or counted twice changes the sum.
        expected = size * (size + 1) / 2
        low, high = float(values.min()), float(values.max())
        if (low, high) != (expected, expected):
            raise RuntimeError(f"the sum over ranks is {low:g} to {high:g}, not {expected:g}")
        return elapsed_ms
    finally:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


def _finish(work: Any, device: torch.device) -> None:
    """Wait for a collective. NCCL's ``wait`` returns at once, and its watchdog would abort the process much later."""
    if device.type == "cpu":
        work.wait()
        return
    deadline = time.monotonic() + COLLECTIVE_S
    while not work.is_completed():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the all-reduce was not done in {COLLECTIVE_S:g} s")
        time.sleep(0.001)
    torch.cuda.synchronize(device)


def _leave(store: dist.Store, rank: int, size: int) -> None:
    """Leave the store; rank 0, which hosts it, leaves last."""
    with contextlib.suppress(Exception):
        store.set(f"left/{rank}", "{}")
        if rank == 0:
            _collect(store, "left", size, _LEAVING_S)


if __name__ == "__main__":
    print(json.dumps([answer._asdict() for answer in probe_world({}, device=sys.argv[1])]))
