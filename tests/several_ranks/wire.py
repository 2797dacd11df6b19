"""Count what a step sends, by wrapping torch's process groups.

Bytes are those of rings, which is how NCCL moves large tensors: of W ranks each sends 2 (W - 1) / W of a tensor that is
all-reduced, and (W - 1) / W of one that is reduce-scattered, gathered, broadcast or reduced to one rank. What gloo
really sends on this machine is another matter, and says nothing about a cluster.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest import mock

import torch.distributed as dist
from torch import Tensor

COLLECTIVES = {
    # Method of a process group: which argument is, or holds, the whole tensor, and how often a ring passes it round.
    "allreduce": (0, 2),
    "allreduce_coalesced": (0, 2),
    "reduce": (0, 1),
    "broadcast": (0, 1),
    "reduce_scatter": (1, 1),
    "reduce_scatter_single": (1, 1),
    "reduce_scatter_single_coalesced": (1, 1),
    "allgather": (0, 1),
    "allgather_coalesced": (0, 1),
    "all_gather_single": (0, 1),
    "all_gather_single_coalesced": (0, 1),
    "alltoall": (0, 1),
    "all_to_all_single": (0, 1),
    "barrier": (0, 0),
}


@dataclass
class Traffic:
    """What one rank has sent."""

    large_elements: int = 0
    """From this number of elements on a collective is a large one."""
    wire_bytes: float = 0.0
    collectives: Counter[str] = field(default_factory=Counter)
    large: int = 0

    def send(self, name: str, group: dist.ProcessGroup, arguments: tuple) -> None:
        """Count a collective."""
        whole, passes = COLLECTIVES[name]
        numel, payload = _payload(arguments[whole]) if passes else (0, 0)
        self.collectives[name] += 1
        self.large += numel > self.large_elements
        self.wire_bytes += passes * payload * (group.size() - 1) / group.size()


@contextlib.contextmanager
def counting(*, large_elements: int = 0) -> Iterator[Traffic]:
    """Count what this process does inside, its other threads included."""
    traffic = Traffic(large_elements)
    with contextlib.ExitStack() as stack:
        for name in COLLECTIVES:
            original = getattr(dist.ProcessGroup, name)
            stack.enter_context(mock.patch.object(dist.ProcessGroup, name, _sending(name, original, traffic)))
        yield traffic


def _sending(name: str, original: Callable, traffic: Traffic) -> Callable:
    def call(group, *arguments, **options):
        traffic.send(name, group, arguments)
        return original(group, *arguments, **options)

    return call


def _payload(argument) -> tuple[int, int]:
    """Return elements and bytes of the tensors in an argument, which may be nested lists."""
    if isinstance(argument, Tensor):
        return argument.numel(), argument.numel() * argument.element_size()
    if isinstance(argument, (list, tuple)):
        parts = [_payload(part) for part in argument]
        return sum(numel for numel, _ in parts), sum(size for _, size in parts)
    return 0, 0
