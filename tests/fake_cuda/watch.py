"""What a step does on a device: copies, waits of the host, kernels, and what is read and written meanwhile."""

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from fake_cuda.memory import Memory
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TOUCH_NOTHING = ("detach", "empty", "empty_like", "device")
ATOMIC = ("cumsum", "embedding_dense_backward", "index_add_", "put_", "scatter_add", "scatter_add_", "scatter_reduce")
"""Operations that may add floats in any order on a GPU: with few tokens the gradient of an embedding does even if torch
is told to be deterministic. An ``index_select`` adds as well, by ``index_add``, but here no row that it takes twice has
two gradients. ``index_put`` sorts its indices before it adds."""


@dataclass(frozen=True)
class Span:
    """Bytes of a storage."""

    storage: int
    begin: int
    end: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Span":
        """Return the bytes from a tensor's first element to its last."""
        begin, size = tensor.storage_offset(), tensor.element_size()
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        end = begin + (sum((number - 1) * step for number, step in steps) + 1 if tensor.numel() else 0)
        return cls(tensor.untyped_storage()._cdata, begin * size, end * size)

    def meets(self, other: "Span") -> bool:
        """Return whether two spans share a byte."""
        return self.storage == other.storage and self.begin < other.end and other.begin < self.end


@dataclass
class Seen:
    """Counts of one step."""

    copies_to_host: int = 0
    launches_before_waits: list[int] = field(default_factory=list)
    """For each copy to the host that it waited for, how many kernels had been launched by then."""
    stream_waits: int = 0
    """How often the host waited for a stream."""
    async_copies: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    """Blocking copies, copies from memory that is not page-locked (blocking too, whatever they say), operations on two
    devices, races with collectives, and sums without an order. A number that the host reads, and most
    operations on two devices, are errors of FakeTensorMode."""
    kernels: Counter[str] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)
    bytes_of_collectives: Counter[str] = field(default_factory=Counter)
    """Bytes of the whole tensor: all ranks' partitions."""
    hook_threads: set[int] = field(default_factory=set)


class Work:
    """A collective under way; it reads some bytes and writes others until somebody waits for it."""

    def __init__(self, watch: "Watch", reads: Tensor, writes: Tensor) -> None:
        self._watch = watch
        self.reads, self.writes = Span.of(reads), Span.of(writes)
        watch.under_way.append(self)

    def wait(self) -> None:
        """Let what follows begin after it."""
        self._watch.under_way.remove(self)


class Watch(TorchDispatchMode):
    """Sees every operation of torch, and is told of every kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()
        self.memory = Memory()
        self.under_way: list[Work] = []
        self._pinned: dict[int, Tensor] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # The host's own arithmetic has numbers; only the device's are missing.
        inputs = _tensors((args, kwargs))
        is_of_host = _is_of_host(inputs, kwargs)
        with unset_fake_temporarily() if is_of_host else contextlib.nullcontext():
            out = function(*args, **kwargs)
        name = function.name().removeprefix("aten::").partition(".")[0]
        if not function.is_view and name not in TOUCH_NOTHING:
            for argument, value in zip(function._schema.arguments, args, strict=False):
                is_written = bool(argument.alias_info and argument.alias_info.is_write)
                for tensor in _tensors(value):
                    self.touch(tensor, name, is_written=is_written)
        for tensor in _tensors(out):
            if tensor.device.type == "cuda":
                self.memory.hold(tensor)
        self._check_devices(name, args, kwargs, out, inputs)
        if name in ATOMIC and not is_of_host and any(tensor.is_floating_point() for tensor in _tensors(out)):
            self.seen.faults[f"sums in any order: {name}"] += 1
        return out

    def _check_devices(self, name: str, args: Any, kwargs: Any, out: Any, inputs: list[Tensor]) -> None:
        devices = {tensor.device.type for tensor in [*inputs, *_tensors(out)]}
        if len(devices) == 1:
            return
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            is_async = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
            way = "to the host" if source.device.type == "cuda" else "from the host"
            if is_async and source.device.type == "cpu" and not self._is_pinned(source):
                self.seen.faults["copy from memory that is not page-locked"] += 1
            counts = self.seen.async_copies if is_async else self.seen.faults
            counts[f"copy {way}" if is_async else f"blocking copy {way}"] += 1
        elif any(tensor.dim() for tensor in inputs if tensor.device.type == "cpu"):  # a number travels with the launch
            self.seen.faults[f"on two devices: {name}"] += 1

    def pin(self, tensor: Tensor) -> Tensor:
        """Stand in for ``Tensor.pin_memory``."""
        with unset_fake_temporarily():
            pinned = tensor.clone()
        self._pinned[pinned.untyped_storage()._cdata] = pinned  # kept, so that no other storage gets its number
        return pinned

    def _is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def touch(self, tensor: Tensor, by: str, *, is_written: bool) -> None:
        """Hold a read or a write against the collectives under way."""
        span = Span.of(tensor) if self.under_way else None
        for work in self.under_way if span else ():
            if work.writes.meets(span):
                self.seen.faults[f"{'written' if is_written else 'read'} while a collective writes it: {by}"] += 1
            elif is_written and work.reads.meets(span):
                self.seen.faults[f"written while a collective reads it: {by}"] += 1

    def launch(self, kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        """Stand in for a launch of Triton."""
        name = kernel.fn.__name__
        self.seen.kernels[name] += 1
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if {tensor.device.type for tensor in tensors} != {"cuda"}:
            self.seen.faults[f"a tensor of the host in {name}"] += 1
        for tensor in tensors:
            if not tensor.is_contiguous():
                self.seen.faults[f"a tensor with gaps in {name}"] += 1
            self.touch(tensor, name, is_written=False)

    def reduce(self, gradients: Tensor, total: Tensor) -> Work:
        """Stand in for ``Bucket.reduce``."""
        self.seen.collectives["reduce"] += 1
        self.seen.bytes_of_collectives["reduce"] += gradients.nbytes
        return Work(self, reads=gradients, writes=total)

    def gather(self, bucket: Any) -> Work:
        """Stand in for ``Bucket.gather``."""
        self.seen.collectives["gather"] += 1
        self.seen.bytes_of_collectives["gather"] += bucket.weights.nbytes
        return Work(self, reads=bucket.partition, writes=bucket.weights)

    def all_reduce(self, tensor: Tensor) -> None:
        """Stand in for ``torch.distributed.all_reduce``, for which the stream waits."""
        self.seen.collectives["all_reduce"] += 1
        self.touch(tensor, "all_reduce", is_written=True)

    def note_thread(self) -> None:
        """Note which thread runs a hook."""
        self.seen.hook_threads.add(threading.get_ident())


def _is_of_host(inputs: list[Tensor], kwargs: dict[str, Any]) -> bool:
    """Return whether an operation begins and ends on the host."""
    is_made_there = torch.device(kwargs.get("device") or "cpu").type == "cpu"
    return is_made_there and not any(isinstance(tensor, FakeTensor) for tensor in inputs)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
