"""Buckets: the parameters whose gradients and weights travel together at ZeRO stages 1 and 2, and how they travel.

DeepSpeed flattens each parameter group of an optimizer, cuts the flat tensor into as many equal *partitions* as there
are ranks, and gives rank r the float32 master of partition r. So a group is what ``reduce_scatter_tensor`` and
``all_gather_into_tensor`` take, without any copy: the sum of partition r goes to rank r, and the partitions of all
ranks make up the flat tensor again. With and without weight decay, BERT would be two groups, and the larger one would
not be complete before the backward pass has ended. `split_groups` makes more of them, so that each can be sent as soon
as the backward pass has computed it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Work(Protocol):
    """Something that is under way."""

    def wait(self) -> object:
        """Let what follows begin after it: on a GPU the stream waits, not the host."""


class Collectives:
    """How a bucket's gradients reach their owners and its weights come back, in a thread (gloo) or a stream (NCCL)."""

    def reduce(self, gradient_sum: Tensor, gradients: Tensor) -> Work:
        """Sum ``gradients`` over ranks, this rank's partition of it into ``gradient_sum``."""
        return dist.reduce_scatter_tensor(gradient_sum, gradients, async_op=True)  # type: ignore[no-any-return]

    def gather(self, weights: Tensor, partition: Tensor) -> Work:
        """Fill ``weights`` with the partitions of all ranks."""
        return dist.all_gather_into_tensor(weights, partition, async_op=True)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Bucket:
    """Parameters in one flat tensor, and this rank's partition of it. Padding at the end is zero everywhere."""

    parameters: dict[str, nn.Parameter]
    """Name -> parameter, each a view of ``weights``."""
    weights: Tensor
    """The model's weights of all partitions, in the precision of the model."""
    master: Tensor
    """Float32 weights of this rank's partition, which the optimizer updates. In a world of one they are a float32
    model's weights themselves: nobody else may write there, as a collective might while masters are filled."""
    gradient_sum: Tensor
    """The sum of all ranks' gradients in this rank's partition, float32; ``master.grad``."""
    rank: int
    """Number of this rank's partition."""

    @property
    def partition(self) -> Tensor:
        """The part of ``weights`` that this rank updates."""
        numel = self.master.numel()
        return self.weights.narrow(0, self.rank * numel, numel)

    @property
    def is_alone(self) -> bool:
        """Whether the one partition is everything: a world of one."""
        return self.master.numel() == self.weights.numel()

    @property
    def is_shared(self) -> bool:
        """Whether the masters are the model's weights."""
        return self.master.data_ptr() == self.partition.data_ptr()

    def round_masters(self) -> None:
        """Copy the masters into the partition, in the precision of the model."""
        if not self.is_shared:
            self.partition.copy_(self.master.detach())

    def zeros(self) -> Tensor:
        """Return a buffer for this rank's own gradients of all partitions; the padding at its end has to stay zero."""
        return torch.zeros(self.weights.numel(), dtype=torch.float32, device=self.weights.device)

    def views(self, gradients: Tensor) -> dict[str, Tensor]:
        """Return where each parameter's gradient is within ``zeros()``, in the parameter's shape."""
        views = {}
        for name, parameter in self.parameters.items():
            # DeepSpeed has made each parameter a view of the flat weights: its address says where it begins.
            offset = (parameter.data_ptr() - self.weights.data_ptr()) // parameter.element_size()
            views[name] = gradients.narrow(0, offset, parameter.numel()).view(parameter.shape)
        return views


def bucket_of(
    parameters: dict[str, nn.Parameter], weights: Tensor, master: Tensor, buffer: Tensor | None, *, rank: int
) -> Bucket:
    """Return the bucket of a DeepSpeed group, whose sum the master takes for its gradient.

    Args:
        parameters: Name -> parameter.
        weights: The flat tensor of the group.
        master: This rank's partition of it, float32.
        buffer: Float32 zeros as large as ``weights`` that DeepSpeed has allocated, if it has.
        rank: Number of the partition.
    """
    is_alone = master.numel() == weights.numel()
    gradient_sum = buffer if is_alone and buffer is not None else torch.zeros_like(master, requires_grad=False)
    if is_alone and master.dtype == weights.dtype:
        master.data = weights.detach()
    master.grad = gradient_sum
    return Bucket(parameters, weights.detach(), master, gradient_sum, rank)


def split_groups(groups: Iterable[dict[str, Any]], model: nn.Module, size: int) -> list[dict[str, Any]]:
    """Cut parameter groups into smaller ones of at most ``size`` elements, or one parameter where that is larger.

    Args:
        groups: The parameter groups of an optimizer. What is true of a group is true of its parts: decay, betas.
        model: Registers its parameters in the order in which the forward pass uses them, roughly. A wrong order costs
            time only.
        size: Elements of a bucket.

    Returns:
        The parts, in the order in which the forward pass needs them.
    """
    order = {id(parameter): index for index, parameter in enumerate(model.parameters())}
    parts = []
    for group in groups:
        ordered = sorted(group["params"], key=lambda parameter: order[id(parameter)])
        parts += [{**group, "params": part} for part in _cut(ordered, size)]
    parts.sort(key=lambda part: order[id(part["params"][0])])
    return [{**part, "params": _aligned(part["params"])} for part in parts]


ALIGNED_ELEMENTS = 8
"""So many elements of 16 bits are 16 bytes, which one instruction of a GPU loads where they begin at a multiple."""


def _aligned(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    """Put parameters of other sizes last: one element in front would misalign all that follow in the flat tensor."""
    return sorted(parameters, key=lambda parameter: parameter.numel() % ALIGNED_ELEMENTS != 0)


def _cut(parameters: list[nn.Parameter], size: int) -> Iterator[list[nn.Parameter]]:
    """Fill buckets from the last parameter on.

    The backward pass begins there. What is left over is then the bucket of the embeddings, the last one to be sent:
    nothing is computed meanwhile, so it had better be small.
    """
    part: list[nn.Parameter] = []
    for parameter in reversed(parameters):
        if part and sum(p.numel() for p in part) + parameter.numel() > size:
            yield part[::-1]
            part = []
        part.append(parameter)
    if part:
        yield part[::-1]
