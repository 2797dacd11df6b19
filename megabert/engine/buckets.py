"""Buckets: the parameters whose gradients and weights travel together at ZeRO stages 1 and 2, and how they travel.

DeepSpeed flattens each parameter group of an optimizer, cuts the flat tensor into one *partition* per rank, all of one
size, and gives rank r the float32 master of partition r. So ``reduce_scatter_tensor`` and
``all_gather_into_tensor`` take a group as it is, without any copy: the sum of partition r goes to rank r, and the
partitions of all ranks make up the flat tensor again. With and without weight decay, BERT would be two groups, and the
larger one would not be complete before the backward pass has ended. `split_groups` makes more of them, so that each can
be sent as soon as the backward pass has computed it.

A rank's fragment table says which elements of which parameter are where in its flat float32 masters. LAMB needs it for
the norms of whole parameters, and checkpoints to name their tensors. A mistake in it would not raise an error: LAMB
would scale some weights by another parameter's trust ratio, the loss would fall all the same, and a checkpoint would
permute the model. Therefore

- each stage computes offsets from addresses: where the model's tensors are in DeepSpeed's flat buffers. DeepSpeed has a
  table of its own (``_hp_mapping``), which is wrong with round-robin gradients;
- ``checked`` compares the values: every fragment of a master, rounded to the model's precision, equals the model's
  weights. It finds a fragment in a wrong place;
- ``check_coverage`` counts elements: over all ranks, every parameter is held exactly once. It finds a fragment that is
  missing or held twice.

Both checks run once, when the engine is built.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megabert.optim import Fragment


class Bucket:
    """Parameters in one flat tensor, and this rank's partition of it. Padding at the end is zero everywhere.

    Which of its tensors share memory depends on the world and on what DeepSpeed has allocated; it allocates whole
    float32 gradients at stage 1 in bfloat16:

        ranks  model             master           gradient_sum           local_buffer()
        1      float32           the weights      zeros, whole           gradient_sum
        1      bf16 at stage 1   float32, whole   whole_gradient         gradient_sum
        1      other 16 bits     float32, whole   zeros, whole           gradient_sum
        more   bf16 at stage 1   float32, part    zeros, part            whole_gradient
        more   any other         float32, part    zeros, part            zeros, whole
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        weights: Tensor,
        master: Tensor,
        whole_gradient: Tensor | None,
        *,
        rank: int,
    ) -> None:
        """Take a group over from DeepSpeed; the master takes the bucket's sum for its gradient.

        Args:
            parameters: Name -> parameter, each a view of ``weights``.
            weights: The model's weights of all partitions, in the precision of the model.
            master: Float32 weights of this rank's partition, which the optimizer updates.
            whole_gradient: Float32 zeros as large as ``weights``, if DeepSpeed has allocated them.
            rank: Number of this rank's partition.
        """
        self.parameters, self.weights, self.master, self.rank = parameters, weights.detach(), master, rank
        self.fragments = list(self._fragments())
        self.is_alone = master.numel() == weights.numel()
        """Whether the one partition is everything: a world of one."""
        self.is_shared = self.is_alone and master.dtype == weights.dtype
        """Whether the masters are the model's weights. Only in a world of one: otherwise a collective might write there
        while masters are filled."""
        if self.is_shared:
            master.data = self.weights
        # Alone, this rank's own gradients are the sum, and DeepSpeed's buffer can hold them.
        if self.is_alone and whole_gradient is not None:
            self.gradient_sum = whole_gradient
        else:
            self.gradient_sum = torch.zeros_like(master, requires_grad=False)
        """The sum of all ranks' gradients in this rank's partition, float32; ``master.grad``."""
        master.grad = self.gradient_sum
        self._whole_gradient = whole_gradient

    @property
    def partition(self) -> Tensor:
        """The part of ``weights`` that this rank updates."""
        numel = self.master.numel()
        return self.weights.narrow(0, self.rank * numel, numel)

    def local_buffer(self) -> Tensor:
        """Return a buffer that stays: this rank's own gradients of all partitions. Alone, it is the sum itself."""
        if self.is_alone:
            return self.gradient_sum
        return self.zeros() if self._whole_gradient is None else self._whole_gradient

    def zeros(self) -> Tensor:
        """Return a buffer for this rank's own gradients of all partitions; the padding at its end has to stay zero."""
        return torch.zeros(self.weights.numel(), dtype=torch.float32, device=self.weights.device)

    def views(self, gradients: Tensor) -> dict[str, Tensor]:
        """Return each parameter's gradient as a view of such a buffer, in the parameter's shape."""
        return {
            name: gradients.narrow(0, self._offset_of(parameter), parameter.numel()).view(parameter.shape)
            for name, parameter in self.parameters.items()
        }

    def reduce(self, gradients: Tensor, total: Tensor) -> dist.Work:
        """Sum buffers over ranks, this rank's partition of them into ``total``, in a thread (gloo) or stream (NCCL)."""
        return dist.reduce_scatter_tensor(total, gradients, async_op=True)  # type: ignore[no-any-return]

    def gather(self) -> dist.Work:
        """Fill ``weights`` with the partitions of all ranks, likewise."""
        return dist.all_gather_into_tensor(self.weights, self.partition, async_op=True)  # type: ignore[no-any-return]

    def _offset_of(self, parameter: nn.Parameter) -> int:
        # DeepSpeed has made each parameter a view of the flat weights: its address gives its first element.
        return (parameter.data_ptr() - self.weights.data_ptr()) // parameter.element_size()

    def _fragments(self) -> Iterator[Fragment]:
        """Yield the overlaps of the parameters and this rank's partition.

        The flat tensor is cut into equal partitions without regard to where parameters begin.
        """
        begin = self.rank * self.master.numel()
        for name, parameter in self.parameters.items():
            position = self._offset_of(parameter)
            first = max(position, begin)
            end = min(position + parameter.numel(), begin + self.master.numel())
            if first < end:
                weights = parameter.detach().view(-1)[first - position : end - position]
                fragment = Fragment(self.master, first - begin, name, first - position, end - first)
                yield checked(fragment, weights)


def split_groups(groups: Iterable[dict[str, Any]], model: nn.Module, size: int) -> list[dict[str, Any]]:
    """Cut parameter groups into smaller ones of at most ``size`` elements, or one parameter if that is larger.

    Args:
        groups: The parameter groups of an optimizer. The parts inherit a group's settings: decay, betas.
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
"""Eight 16-bit elements are 16 bytes, which one instruction of a GPU loads if they begin at a multiple of 16."""


def _aligned(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    """Put parameters of other sizes last: one element in front would misalign all that follow in the flat tensor."""
    return sorted(parameters, key=lambda parameter: parameter.numel() % ALIGNED_ELEMENTS != 0)


def _cut(parameters: list[nn.Parameter], size: int) -> Iterator[list[nn.Parameter]]:
    """Fill buckets from the last parameter on.

    The backward pass begins there. The remainder is then the bucket of the embeddings, the last one to be sent: nothing
    overlaps with it, so it should be small.
    """
    part: list[nn.Parameter] = []
    for parameter in reversed(parameters):
        if part and sum(p.numel() for p in part) + parameter.numel() > size:
            yield part[::-1]
            part = []
        part.append(parameter)
    if part:
        yield part[::-1]


def checked(fragment: Fragment, weights: Tensor) -> Fragment:
    """Return a fragment whose master holds the model's weights; a 16-bit model was rounded from its master."""
    if not torch.equal(fragment.view().to(weights.dtype), weights):
        raise RuntimeError(
            f"{fragment.parameter}[{fragment.start}:{fragment.start + fragment.numel}] is not at offset "
            f"{fragment.offset} of its float32 master: DeepSpeed lays parameters out in an unknown way."
        )
    return fragment


def check_coverage(
    fragments: Sequence[Fragment], shapes: Mapping[str, torch.Size], group: dist.ProcessGroup | None
) -> None:
    """Check that the ranks together hold every element of every parameter.

    Args:
        fragments: This rank's table.
        shapes: Whole shape of every parameter.
        group: A CPU group of all ranks, for one all-reduce of a count per parameter; None if each rank has to hold
            every parameter whole.

    Raises:
        RuntimeError: Naming the parameters with missing or surplus elements, on every rank.
    """
    # Elements of each parameter, on this rank and then on all.
    held = dict.fromkeys(shapes, 0)
    for fragment in fragments:
        held[fragment.parameter] += fragment.numel
    counts = torch.tensor(list(held.values()), dtype=torch.int64)
    if group is not None:
        dist.all_reduce(counts, group=group)  # by gloo: every rank waits here, once per start
    wrong = [
        f"{name}: {count} of {shape.numel()}"
        for (name, shape), count in zip(shapes.items(), counts.tolist(), strict=True)
        if count != shape.numel()
    ]
    if wrong:
        raise RuntimeError(f"The fragment table does not cover the model: {'; '.join(wrong)}.")
