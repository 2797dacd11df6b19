"""The ranks meet at a store of rank 0's, or of torchrun's, at MASTER_ADDR and MASTER_PORT.

Until then no rank can report to another one, and torch waits without a word. So torch's calls run in a thread, while
the main thread says whom it waits for, keeps the time limit, and answers signals.
"""

import contextlib
import datetime
import itertools
import logging
import os
import socket
import threading
import time
from ipaddress import ip_address

import torch.distributed as dist

from megabert.distributed.environments import MEETING_THREAD
from megabert.foundation.errors import EXIT_HOPELESS, ConfigError, Echo, MegabertError

logger = logging.getLogger(__name__)

SAY_AFTER_S = 10.0
"""After this time a rank says whom it waits for; a name that nobody knows by then is refused."""
_SAY_AGAIN_S = 60.0  # from then on, one line per minute
_POLL_S = 0.1  # how soon a rank that arrives, or a signal, is noticed
_SHOWN = 8  # missing ranks that a line names
_SEE = "ranks-do-not-find-each-other"
_worlds = itertools.count()


class MeetingError(MegabertError):
    """The ranks did not meet in time; as a start that hangs before it owns a run folder, it is not tried again."""

    exit_code = EXIT_HOPELESS


class _Meeting:
    """The thread's progress, for the main thread's sentences."""

    def __init__(self, rank: int, size: int, timeout: datetime.timedelta) -> None:
        self.rank, self.size, self.timeout, self.world = rank, size, timeout, next(_worlds)
        self.address, self.port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.place = f"MASTER_ADDR={self.address}, MASTER_PORT={self.port}"
        self.awaits = f"an address for {self.place}"
        self.store: dist.Store | None = None
        self.error: Exception | None = None
        self.is_given_up = False

    def run(self) -> None:
        """Keep the store, or the error, for the main thread."""
        try:
            self._resolve()
            self.store = self._meet()
        except Exception as error:
            self.error = self._explained(error)

    def _resolve(self) -> None:
        """Wait for the name a little: a cluster may announce a host a moment after it has started it."""
        deadline = time.monotonic() + SAY_AFTER_S
        while True:
            try:
                socket.getaddrinfo(self.address, self.port)
                return
            except (OSError, UnicodeError) as error:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"{socket.gethostname()} (rank {self.rank}): MASTER_ADDR={self.address[:255]!a} is the name of "
                        f"no host here: {error}. Set it to the name or address of rank 0's host.",
                        see=_SEE,
                    ) from None
            time.sleep(_POLL_S)

    def _meet(self) -> dist.Store:
        has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun listens on the port itself
        is_host = self.rank == 0 and not has_agent
        host = "torchrun" if has_agent else "itself, if that is its host," if is_host else "rank 0"
        self.awaits = f"{host} at {self.place}"
        store = dist.TCPStore(
            self.address,
            self.port,
            is_master=is_host,
            timeout=self.timeout,
            wait_for_workers=False,  # ranks are awaited below, where the missing ones can be named
            multi_tenant=True,  # a later world of this process uses the same server
        )
        # A process may enter several worlds at one store, one after the other; none may read keys of an earlier one.
        # Nor may ranks that torchrun --max-restarts starts again: its store outlives them.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        own = dist.PrefixStore(f"attempt/{attempt}/world/{self.world}", store)
        keys = dist.PrefixStore("meeting", own)
        keys.set(str(self.rank), _host_and_address())
        if self.rank != 0:
            self.awaits = f"rank 0 at {self.place}, which waits for all ranks"
            keys.wait(["all"], self.timeout)  # blocks until rank 0 has seen every rank
            if problem := keys.get("all").decode():
                raise Echo(ConfigError(problem))
            return own
        missing = list(range(1, self.size))
        remedy = f"start all: srun --overlap -n {self.size} ..., or one alone: RANK=0 WORLD_SIZE=1 ..."
        shell = (
            f" (a shell of srun --pty is one task of {self.size}; {remedy})" if "SLURM_PTY_PORT" in os.environ else ""
        )
        while (missing := [rank for rank in missing if not keys.check([str(rank)])]) and not self.is_given_up:
            more = ", ..." if len(missing) > _SHOWN else ""
            self.awaits = f"rank {', '.join(map(str, missing[:_SHOWN]))}{more} of {self.size} at {self.place}{shell}"
            time.sleep(_POLL_S)
        if missing:
            raise self.failure("this rank has given up")
        hosts = dict(keys.get(str(rank)).decode().split(" ") for rank in range(self.size))
        local = next((name for name in hosts if len(hosts) > 1 and ip_address(hosts[name]).is_loopback), "")
        problem = local and (
            f"{local}: its name means {hosts[local]} there, which gloo would give to the other hosts, and they cannot "
            "reach. Name the interface between the hosts, on each of them: export GLOO_SOCKET_IFNAME=..."
        )
        keys.set("all", problem)
        if problem:
            raise ConfigError(problem, see=_SEE)
        return own

    def _explained(self, error: Exception) -> Exception:
        """Return an error of torch as a sentence, if its cause is known."""
        if "EADDRINUSE" in str(error):
            return ConfigError(
                f"{socket.gethostname()} (rank {self.rank}): MASTER_PORT={self.port} is in use by another program, "
                "perhaps by another job on this host, or by another rank 0. Give each job a port of its own: export "
                "MASTER_PORT=...",
                see=_SEE,
            )
        if isinstance(error, dist.DistError):
            return self.failure(" ".join(str(error).split())[:200])
        return error

    def failure(self, why: str) -> MeetingError:
        """Return the error of ranks that do not meet."""
        return MeetingError(
            f"{socket.gethostname()} (rank {self.rank}): waited for {self.awaits}: {why}. Look for the first error of "
            "the other ranks, and check that the name means the same host on every node and no firewall is between.",
            see=_SEE,
        )


def meet(rank: int, size: int, *, patience_s: float) -> dist.Store:
    """Meet the other ranks; return the store that all of them see.

    Args:
        rank: This rank.
        size: Number of ranks.
        patience_s: After this time without the others, an error.

    Raises:
        ConfigError: MASTER_ADDR is the name of no host, or MASTER_PORT is taken.
        MeetingError: Not all ranks came in time.
    """
    meeting = _Meeting(rank, size, datetime.timedelta(seconds=patience_s))
    thread = threading.Thread(target=meeting.run, name=MEETING_THREAD, daemon=True)
    thread.start()
    since, begun, says_at = time.strftime("%H:%M:%S"), time.monotonic(), SAY_AFTER_S
    try:
        while thread.is_alive():
            thread.join(_POLL_S)  # short, since Python's handlers of signals run in between
            waited = time.monotonic() - begun
            if meeting.store is None and waited > patience_s:
                raise meeting.failure(f"they have not met after {waited:.0f} s, since {since}")
            if waited > says_at:
                logger.warning("rank %d waits for %s since %s, for %.0f s", rank, meeting.awaits, since, waited)
                says_at += _SAY_AGAIN_S
    except BaseException:  # a signal, or the time is over
        meeting.is_given_up = True
        thread.join(5 * _POLL_S)  # rank 0's ends; another rank's may be inside torch for as long as its patience
        raise
    if meeting.error is not None:
        raise meeting.error
    assert meeting.store is not None
    return meeting.store


def check_interfaces() -> None:
    """Refuse interfaces of GLOO_SOCKET_IFNAME that this host lacks, or that have no address.

    Raises:
        ConfigError: It names another one.
    """
    own = ", ".join(name for _, name in socket.if_nameindex())
    for name in filter(None, os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")):
        try:
            dist.ProcessGroupGloo.create_device(interface=name)
        except RuntimeError:
            raise ConfigError(
                f"{socket.gethostname()}: GLOO_SOCKET_IFNAME names {name[:40]!a}, which has no address here; the "
                f"interfaces are {own}. Name one of them, or unset it.",
                see=_SEE,
            ) from None


def _host_and_address() -> str:
    """Return this host's name and the address that gloo gives to the others; 0.0.0.0 stands for an interface's."""
    host, interface = socket.gethostname(), os.environ.get("GLOO_SOCKET_IFNAME")
    address = "127.0.0.1"  # which gloo takes for a name without an address
    with contextlib.suppress(OSError):
        address = str(socket.getaddrinfo(host, None)[0][4][0])
    return f"{host} {'0.0.0.0' if interface and interface != 'lo' else address}"
