"""Ranks that meet, and the ones whose place or whose partners do not exist."""

import itertools
import re
import socket
import threading

import pytest
from torch.distributed import TCPStore

from megabert.distributed import meeting
from megabert.distributed.environments import MEETING_THREAD
from megabert.distributed.meeting import MeetingError, check_interfaces, meet
from megabert.foundation.errors import ConfigError, Echo


@pytest.fixture
def port(monkeypatch):
    """Set a place to meet at, with a port that is free, and little patience before a rank speaks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setattr(meeting, "SAY_AFTER_S", 0.1)
    return free


@pytest.mark.parametrize(("rank", "awaited"), [(0, r"rank 1, 2 of 3 at MASTER_ADDR"), (1, r"rank 0 at MASTER_ADDR")])
def test_rank_says_whom_it_waits_for_and_gives_up(port, caplog, rank, awaited):
    with pytest.raises(MeetingError, match=rf"waited for {awaited}=127.0.0.1, MASTER_PORT={port}: .*since") as error:
        meet(rank, 3, patience_s=3.0)  # a loaded machine needs a second for the store
    # Its thread would look into the store for ever, and abort the process at its end.
    assert rank != 0 or all(thread.name != MEETING_THREAD for thread in threading.enumerate())
    assert error.value.exit_code == 70
    assert f"rank {rank} waits for {awaited.partition(' at')[0]}" in caplog.text


def test_shell_that_is_one_task_of_several_says_how_to_start_the_others(port, monkeypatch):
    monkeypatch.setenv("SLURM_PTY_PORT", "45123")
    with pytest.raises(MeetingError, match=r"a shell of srun --pty is one task of 3; start all: srun --overlap -n 3"):
        meet(0, 3, patience_s=3.0)


def test_ranks_that_torchrun_starts_again_wait_for_each_other_again(port, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr(meeting, "_worlds", itertools.repeat(0))  # each attempt has new processes
    torchruns = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    other = threading.Thread(target=meet, args=(1, 2), kwargs={"patience_s": 60.0})
    other.start()
    meet(0, 2, patience_s=60.0).set("failed", "by the first attempt")
    other.join()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(MeetingError, match=r"waited for rank 1 of 2"):
        meet(0, 2, patience_s=1.0)
    del torchruns  # it listens until here


def test_address_of_no_host_is_refused(port, monkeypatch):
    def resolve(host, port):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setenv("MASTER_ADDR", "nowhere.invalid")
    monkeypatch.setattr(meeting.socket, "getaddrinfo", resolve)
    with pytest.raises(ConfigError, match=r"MASTER_ADDR='nowhere.invalid' is the name of no host here"):
        meet(1, 2, patience_s=60.0)


def test_port_of_another_program_is_named(port):
    with (
        socket.create_server(("", port)),
        pytest.raises(ConfigError, match=rf"MASTER_PORT={port} is in use by another program"),
    ):
        meet(0, 2, patience_s=60.0)


def test_interface_that_is_missing_is_named(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    check_interfaces()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,ib77")
    with pytest.raises(ConfigError, match=r"names 'ib77', which has no address here; the interfaces are .*lo"):
        check_interfaces()


@pytest.mark.parametrize(("hosts", "is_refused"), [("node1 node2", True), ("node1 node1", False)])
def test_host_whose_name_means_an_address_of_its_own_alone_is_named(port, monkeypatch, hosts, is_refused):
    """The name is in /etc/hosts as on Debian: the ranks of other hosts would wait for a connection without end."""
    stated = iter([f"{name} 127.0.1.1" for name in hosts.split()])
    monkeypatch.setattr(meeting, "_worlds", itertools.repeat(0))
    monkeypatch.setattr(meeting, "_host_and_address", lambda: next(stated))
    errors, stores = {}, []  # rank 0's store is the server: it stays until the other rank has its answer

    def join(rank: int) -> None:
        try:
            stores.append(meet(rank, 2, patience_s=60.0))
        except Exception as error:
            errors[rank] = error

    other = threading.Thread(target=join, args=(1,))
    other.start()
    join(0)
    other.join()
    kinds = {rank: type(error) for rank, error in errors.items()}
    assert kinds == ({0: ConfigError, 1: Echo} if is_refused else {})
    if is_refused:
        assert re.match(r"node[12]: its name means 127\.0\.1\.1 there, .* GLOO_SOCKET_IFNAME", str(errors[0]))


def test_gloo_gives_others_the_address_of_a_named_interface(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(meeting.socket, "gethostname", lambda: "localhost")
    assert meeting._host_and_address() in ("localhost 127.0.0.1", "localhost ::1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert meeting._host_and_address() == "localhost 0.0.0.0"
