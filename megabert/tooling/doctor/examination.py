"""All checks of one machine, or of all ranks of a job, as one list of findings.

Torch is imported only after ``check_torch`` has tried to: a machine without it gets a finding, not a traceback.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from megabert.distributed.environments import describe_rank, own_rank, step_hosts
from megabert.foundation.errors import ConfigError
from megabert.foundation.files import open_in_place
from megabert.foundation.full_disk import existing_folder
from megabert.tooling.doctor.finding import Finding, failure, listing, merge_findings
from megabert.tooling.doctor.machine import check_disk, check_limits, check_slurm, check_torch, check_versions

if TYPE_CHECKING:
    from megabert.tooling.doctor.probe import Answer

EXCLUDE = "Leave the node out (sbatch --exclude=NODE), and tell whoever looks after it."
SHARED = "run folder"
"""Name of the check whether all ranks see the same run folder, among the names of backends."""
REMEDIES = {
    "gloo": "Name the network interface that the nodes share: export GLOO_SOCKET_IFNAME=... (see ip -brief address).",
    "nccl": "Name the network interface that the nodes share: export NCCL_SOCKET_IFNAME=... (NCCL_DEBUG=INFO shows).",
    SHARED: "The run folder has to be on a file system that all nodes share: --run-dir.",
}


def examine(run_dir: Path, *, device: str, is_quick: bool, own: Sequence[Finding] = ()) -> list[Finding]:
    """Examine this machine or, in a job of several ranks, all of them; then every rank has to call it.

    Args:
        run_dir: Where a run would write; it need not exist.
        device: ``auto``, ``cpu`` or ``cuda``.
        is_quick: Whether to check only what can differ between nodes and from start to start: devices, limits, disk and
            collectives.
        own: Earlier findings of this rank, for all ranks to learn of.

    Returns:
        The findings; in a job the same ones on every rank.

    Raises:
        ConfigError: Rank 0's meeting point cannot be reached, or this rank is not rank 0 and lacks torch.
    """
    broken = check_torch()
    if broken:
        # Without torch the ranks cannot meet. Rank 0 reports all else; another rank names the missing module.
        if own_rank() != "0":
            raise ConfigError(f"{socket.gethostname()}: {broken[0].text}. Install it there: {broken[0].remedy}.")
        return check_versions() + broken + check_limits() + check_disk(run_dir, is_quick=is_quick) + check_slurm()

    import torch

    from megabert.tooling.doctor.probe import probe_locally, probe_world

    kind = "cuda" if device != "cpu" and torch.cuda.device_count() else "cpu"
    rank = describe_rank()
    # No job, or a single task: examine this machine, and let some ranks of our own all-reduce on it.
    if rank["WORLD_SIZE"] == "1":
        findings = [*own, *_examine_here(run_dir, device, kind, is_quick=is_quick, local_rank=None)]
        ranks = max(2, torch.cuda.device_count()) if kind == "cpu" else torch.cuda.device_count()
        return findings + judge(probe_locally(ranks, device=kind), expected_hosts=())
    # A job: every rank examines its own host, then they exchange findings and all-reduce.
    here = _examine_here(run_dir, device, kind, is_quick=is_quick, local_rank=int(rank["LOCAL_RANK"]))
    with _shared_file(run_dir, rank) as is_seen:
        answers = probe_world([vars(finding) for finding in (*own, *here)], device=kind, checks={SHARED: is_seen})
    came = [answer for answer in answers if answer.has_come]
    merged = merge_findings([answer.host for answer in came], [answer.local for answer in came])
    expected: Sequence[str] = ()
    with contextlib.suppress(ConfigError):  # a container without scontrol
        expected = step_hosts()
    return merged + judge(answers, expected_hosts=expected)


def judge(answers: "Sequence[Answer]", *, expected_hosts: Sequence[str]) -> list[Finding]:
    """Return the findings about which ranks came and how their all-reduces went.

    Args:
        answers: The answer of every rank that should be there.
        expected_hosts: Hosts of the job, to name those from which no rank came.
    """
    # If some did not come, that is the finding: nobody has reduced anything.
    hosts = sorted({answer.host for answer in answers if answer.has_come})
    missing = [answer.rank for answer in answers if not answer.has_come]
    if missing:
        silent = ", ".join(host for host in expected_hosts if host not in hosts)
        absent = f"rank(s) {listing(missing)} of {len(answers)} did not come to MASTER_ADDR"
        text = f"{silent}: {absent}" if silent else absent
        return [failure("collectives", f"{text}; here are {', '.join(hosts)}", EXCLUDE)]
    names = dict.fromkeys(name for answer in answers for name in answer.collectives or {})
    findings = [finding for name in names for finding in _judge_one(name, answers)]
    stuck = [answer.place for answer in answers if answer.collectives is None]
    text = "never came back from an all-reduce"
    return findings + [failure("collectives", text, EXCLUDE, where=place) for place in stuck]


def _judge_one(name: str, answers: "Sequence[Answer]") -> Iterator[Finding]:
    """Yield the findings about one backend, or about the shared folder."""
    by_text: dict[str, list[Answer]] = {}
    for answer in answers:
        by_text.setdefault((answer.collectives or {}).get(name, ""), []).append(answer)
    by_text.pop("", None)  # ranks without a problem
    if not by_text:
        yield Finding(area="collectives", level="ok", text=_success(name, answers))
    for text, group in by_text.items():
        # If all fail alike no node is bad, but something that they share.
        is_everywhere = len(group) == len(answers)
        where = "all ranks" if is_everywhere else listing((answer.place for answer in group), "; ")
        remedy = REMEDIES.get(name, "") if is_everywhere or name == SHARED else EXCLUDE
        yield failure("collectives", f"{name}: {text}", remedy, where=where)


def _success(name: str, answers: "Sequence[Answer]") -> str:
    if name == SHARED:
        return "all ranks see the same run folder"
    slowest = max((answer.all_reduce_ms or {}).get(name, 0.0) for answer in answers)
    hosts = len({answer.host for answer in answers})
    return f"{name} all-reduce over {len(answers)} ranks on {hosts} host(s): right, 16 MiB in {slowest:.0f} ms"


def _examine_here(run_dir: Path, device: str, kind: str, *, is_quick: bool, local_rank: int | None) -> list[Finding]:
    from megabert.tooling.doctor.devices import check_apex, check_devices, check_ops

    findings = check_devices(device, local_rank=local_rank) + check_limits() + check_disk(run_dir, is_quick=is_quick)
    if is_quick:
        return findings
    return check_versions() + findings + check_ops(kind) + check_apex() + check_slurm()


@contextlib.contextmanager
def _shared_file(run_dir: Path, rank: Mapping[str, str]) -> Iterator[Callable[[], None]]:
    """Have rank 0 create a file where the run will be; yield a check that raises on a rank that does not see it."""
    path = existing_folder(run_dir) / f".megabert-doctor-{rank.get('MASTER_PORT', 'alone')}"
    is_main = rank["RANK"] == "0"

    def is_seen() -> None:
        if not path.exists():
            raise FileNotFoundError(f"{path.parent} is not the folder that rank 0 sees")

    try:
        if is_main:
            with contextlib.suppress(OSError):  # check_disk reports it
                os.close(open_in_place(path, os.O_WRONLY))
        yield is_seen
    finally:
        if is_main:
            path.unlink(missing_ok=True)
