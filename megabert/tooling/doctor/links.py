"""The collectives of a run, at its bucket size: are all sums right, how fast are they, and is a link slow?

A rank's contribution is its number plus one, times a pattern of small whole numbers, so that every sum is exact in
float32. If one is wrong, each rank contributes alone, in turn: the rank whose contribution does not arrive is named.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from megabert.distributed.process_group import World
from megabert.tooling.doctor.finding import Finding, failure, judge_rates, listing, named_ranks
from megabert.tooling.measurements.measured import CollectiveName, CollectiveSpeed, Scope

SMALL_ELEMENTS = 1 << 12
"""Elements of a message whose time is mostly its latency."""
LINK_BYTES = 8 << 20
LINK_ROUNDS = 5
WRONG_SUM_REMEDY = (
    "Leave the node out (sbatch --exclude=NODE), and look at its network card and memory (dmesg, nvidia-smi)."
)
LINK_REMEDY = "Look at cable, card and switch of these hosts (ibstat, ethtool), or leave one out: sbatch --exclude."
MIN_LINK_GB_S = 0.05
"""Half of a gigabit network: no job trains over less."""
_EXACT = 2**24
_PATTERN = 97
_REPETITIONS = 5


def check_collectives(world: World, hosts: list[str], elements: int) -> list[Finding]:
    """Run every collective of a run once, at its bucket size, and check each element; the same findings on all ranks.

    Args:
        world: This rank and the others.
        hosts: Each rank's host.
        elements: Float32 elements of a bucket.
    """
    findings, places = [], named_ranks(hosts)
    elements = _divisible(elements, world.size)
    for name, collective in COLLECTIVES.items():
        is_wrong = world.gather(not _is_right(world, collective, elements, range(world.size)))
        if not any(is_wrong):
            continue
        sees = [place for place, wrong in zip(places, is_wrong, strict=True) if wrong]
        # Each rank alone, in turn. No rank may leave early, since all have to take part.
        outcomes = [_is_right(world, collective, elements, range(rank, rank + 1)) for rank in range(world.size)]
        wrong_by_rank = [not all(column) for column in zip(*world.gather(outcomes), strict=True)]
        culprits = [place for place, wrong in zip(places, wrong_by_rank, strict=True) if wrong]
        alone = "the contributions of these ranks arrive wrong" if culprits else "each rank's is right"
        text = f"{name} of {4 * elements / 2**20:.1f} MiB over {world.size} ranks: wrong on {listing(sees)}"
        text += f"; alone, {alone} (every element has to be equal)"
        where = listing(culprits) or listing(sees)
        findings.append(failure("collectives", text, WRONG_SUM_REMEDY, where=where))
    if not findings and world.size > 1:
        text = f"{', '.join(COLLECTIVES)} of {4 * elements / 2**20:.1f} MiB over {world.size} ranks: exact"
        findings.append(Finding(area="collectives", level="ok", text=text))
    return findings


def _all_reduce(own: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    dist.all_reduce(own, group=group)
    return own


def _reduce_scatter(own: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    out = own.new_empty(own.numel() // dist.get_world_size(group))
    dist.reduce_scatter_tensor(out, own, group=group)
    return out


def _all_gather(own: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Gather the partitions of all ranks; a rank gives its own part of the tensor."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    out = torch.empty_like(own)
    dist.all_gather_into_tensor(out, own.view(size, -1)[rank].clone(), group=group)
    return out


Collective = Callable[[Tensor, dist.ProcessGroup | None], Tensor]
"""Runs a collective with this rank's tensor, among a group of ranks; returns this rank's result."""
COLLECTIVES: dict[CollectiveName, Collective] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
}


def _is_right(world: World, collective: Collective, elements: int, ranks: range) -> bool:
    """Run a collective to which some ranks contribute; return whether this rank's result is exact."""
    size, sums = world.size, sum(rank + 1 for rank in range(world.size))
    modulus = max(1, min(_PATTERN, _EXACT // sums - 1))
    pattern = (torch.arange(elements, device=world.device) % modulus + 1).float()
    result = collective(pattern * (world.rank + 1) * (world.rank in ranks), None)
    if collective is _all_gather:
        factors = torch.tensor([float(rank + 1) * (rank in ranks) for rank in range(size)], device=world.device)
        return torch.equal(result.view(size, -1), pattern.view(size, -1) * factors[:, None])
    expected = pattern * sum(rank + 1 for rank in ranks)
    return torch.equal(result, expected if collective is _all_reduce else expected.view(size, -1)[world.rank])


def measure_collectives(world: World, hosts: list[str], elements: int) -> Iterator[CollectiveSpeed]:
    """Yield the speed of each collective, over the job, inside the nodes and between them; the slowest rank's."""
    for scope, group in _groups(world, hosts):
        size = dist.get_world_size(group)
        for name, collective in COLLECTIVES.items():
            sizes = [_divisible(numel, size) for numel in (SMALL_ELEMENTS, max(elements, 4 * SMALL_ELEMENTS))]
            small_s, large_s = (max(world.gather(_collective_s(world, collective, n, group))) for n in sizes)
            byte_s = max(0.0, large_s - small_s) / (4 * (sizes[1] - sizes[0]))
            message_s = max(0.0, small_s - 4 * sizes[0] * byte_s)
            yield CollectiveSpeed(name=name, scope=scope, message_s=message_s, byte_s=byte_s)


def _groups(world: World, hosts: list[str]) -> Iterator[tuple[Scope, dist.ProcessGroup | None]]:
    """Yield the groups of this rank by scope: none for a rank alone, no parts if nodes have different numbers."""
    nodes = [[rank for rank, own in enumerate(hosts) if own == host] for host in dict.fromkeys(hosts)]
    if world.size == 1:
        return
    if len(nodes) in (1, world.size):
        yield "node" if len(nodes) == 1 else "network", None
        return
    yield "job", None
    if len({len(ranks) for ranks in nodes}) == 1:
        yield "node", dist.new_subgroups_by_enumeration(nodes)[0]
        columns = [list(ranks) for ranks in zip(*nodes, strict=True)]
        yield "network", dist.new_subgroups_by_enumeration(columns)[0]


def _collective_s(world: World, collective: Collective, elements: int, group: dist.ProcessGroup | None) -> float:
    values, times = torch.ones(elements, device=world.device), []
    for _ in range(_REPETITIONS + 1):  # the first opens connections
        times.append(_together(world, partial(collective, values, group)))
    return statistics.median(times[1:])


def _together(world: World, work: Callable[[], object]) -> float:
    """Return the seconds of some work that all ranks begin at the same time."""
    dist.barrier(group=world.control)
    started = time.perf_counter()
    work()
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    return time.perf_counter() - started


def _divisible(elements: int, size: int) -> int:
    return -(-elements // size) * size


def compare_links(world: World, hosts: list[str]) -> list[Finding]:
    """Let neighbours in the ring of ranks exchange a buffer, and compare their links; every rank has the findings."""
    if world.size == 1:
        return []
    edges = [(rank, (rank + 1) % world.size) for rank in range(world.size if world.size > 2 else world.size - 1)]
    best = dict.fromkeys(edges, float("inf"))
    for round_ in (edges[0::2][: world.size // 2], edges[1::2], edges[0::2][world.size // 2 :]):
        mine = next((edge for edge in round_ if world.rank in edge), None)
        for _ in range(LINK_ROUNDS):
            seconds = _together(world, partial(_exchange, world, mine))
            if mine is not None:
                best[mine] = min(best[mine], seconds)
    # Both ends have measured; the slower one counts.
    gathered = world.gather([best[edge] for edge in edges])
    slowest = [max(times[i] for times in gathered if times[i] != float("inf")) for i in range(len(edges))]
    return list(judge_links({edge: LINK_BYTES / s / 1e9 for edge, s in zip(edges, slowest, strict=True)}, hosts))


def _exchange(world: World, edge: tuple[int, int] | None) -> None:
    if edge is None:
        return
    peer = edge[0] + edge[1] - world.rank
    sent = torch.ones(LINK_BYTES // 4, device=world.device)
    received = torch.empty_like(sent)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]):
        work.wait()


def describe_speeds(speeds: Iterable[CollectiveSpeed]) -> list[Finding]:
    """Return a line for each collective: what its bytes and its messages take."""
    texts = (
        f"{speed.name} over the {speed.scope}: {1e-9 / max(speed.byte_s, 1e-15):,.3g} GB/s, "
        f"{1000 * speed.message_s:.3g} ms per message"
        for speed in speeds
    )
    return [Finding(area="rates", level="ok", text=text) for text in texts]


def judge_links(rates: dict[tuple[int, int], float], hosts: list[str]) -> Iterator[Finding]:
    """Yield the findings about links, each compared with the links of its kind.

    Args:
        rates: GB/s in each direction between two ranks.
        hosts: Each rank's host.
    """
    places = named_ranks(hosts)
    for kind, is_inside in (("inside a node", True), ("between nodes", False)):
        own = {
            f"{places[one]} - {places[other]}": rate
            for (one, other), rate in rates.items()
            if (hosts[one] == hosts[other]) == is_inside
        }
        yield from judge_rates("links", f"link {kind}", "GB/s each way", own, LINK_REMEDY, least=MIN_LINK_GB_S)
