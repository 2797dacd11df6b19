"""Count what a step sends and how often the host would wait for a GPU, by wrapping torch's process groups and tensors.

Bytes are those of rings, which is how NCCL moves large tensors: of W ranks each sends 2 (W - 1) / W of a tensor that is
all-reduced, and (W - 1) / W of one that is reduce-scattered, gathered, broadcast or reduced to one rank. What gloo
really sends on this machine is another matter, and says nothing about a cluster.
"""

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

import megabert.ops
from megabert.engine.engine import HostCopy

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
HOST_WAITS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")
"""Methods of a tensor that wait for the GPU which computes it."""
_OPS, _TORCH = (Path(package.__file__).parent for package in (megabert.ops, torch))


@dataclass
class Traffic:
    """What one rank has sent, and how often its host waited."""

    large_elements: int = 0
    """From so many elements on a collective is a large one."""
    wire_bytes: float = 0.0
    collectives: Counter[str] = field(default_factory=Counter)
    large: int = 0
    host_waits: Counter[str] = field(default_factory=Counter)
    """How often, for each place in the code that waits."""
    on_host: list[Tensor] = field(default_factory=list)
    """Copies that were fetched; reading them again waits for nothing."""

    def wait(self, tensor: Tensor, place: str) -> None:
        """Count that the host reads a tensor."""
        storages = {copy.untyped_storage().data_ptr() for copy in self.on_host}
        if tensor.untyped_storage().data_ptr() not in storages:
            self.host_waits[place] += 1

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
        for name in HOST_WAITS:
            original = getattr(Tensor, name)
            stack.enter_context(mock.patch.object(Tensor, name, _waiting(original, traffic)))
        stack.enter_context(mock.patch.object(HostCopy, "wait", _fetching(HostCopy.wait, traffic)))
        yield traffic


def _sending(name: str, original: Callable, traffic: Traffic) -> Callable:
    def call(group, *arguments, **options):
        traffic.send(name, group, arguments)
        return original(group, *arguments, **options)

    return call


def _waiting(original: Callable, traffic: Traffic) -> Callable:
    def call(tensor, *arguments, **options):
        caller = inspect.currentframe().f_back
        file = Path(caller.f_code.co_filename)
        # On a CPU the ops read tensors freely; their kernels on a GPU do not. And torch's own methods call each other.
        if not any(file.is_relative_to(folder) for folder in (_OPS, _TORCH)):
            traffic.wait(tensor, f"{file.name}:{caller.f_lineno}")
        result = original(tensor, *arguments, **options)
        if isinstance(result, Tensor):  # cpu() returns the same tensor on a CPU
            result = result.clone()
            traffic.on_host.append(result)
        return result

    return call


def _fetching(original: Callable, traffic: Traffic) -> Callable:
    def wait(copy):
        traffic.host_waits["HostCopy"] += 1
        result = original(copy).clone()
        traffic.on_host.append(result)
        return result

    return wait


def _payload(argument) -> tuple[int, int]:
    """Return elements and bytes of the tensors in an argument, which may be nested lists."""
    if isinstance(argument, Tensor):
        return argument.numel(), argument.numel() * argument.element_size()
    if isinstance(argument, (list, tuple)):
        parts = [_payload(part) for part in argument]
        return sum(numel for numel, _ in parts), sum(size for _, size in parts)
    return 0, 0
