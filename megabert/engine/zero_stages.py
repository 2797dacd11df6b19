"""The ZeRO stages: which elements of which parameter a rank holds, how its gradients are reduced and weights updated.

Here are stage 0 and what the other stages have in common with it (`zero1_zero2`, `zero3`).

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) shards what data parallelism would keep on every rank. A *master* is
the float32 weight that the optimizer updates; *whole* means all elements of every parameter, *local* not yet reduced:

    stage                 sharded over ranks                      gradients between ``backward`` and ``step``
    0 (Unsharded)         nothing                                 whole and local, in ``parameter.grad``
    1 (Zero1, Bf16)       masters, moments                        whole and local, in float32 buckets
    2 (Zero2)             masters, moments, gradients             reduced; this rank's partition of each bucket
    3 (Zero3)             masters, moments, gradients, weights    reduced; this rank's part of each parameter

Stage 3 is DeepSpeed's own: it reduces, clips, updates and gathers. At stages 0 to 2 it lays out weights and masters,
and what is sent is ours: its stages 1 and 2 all-reduce where a reduce-scatter is enough, and hide nothing behind the
backward pass (docs/decisions.md).

DeepSpeed's documented access to a gradient (``safe_get_full_grad``) gathers one whole parameter from all ranks. The
norm needs every gradient in every step, so it is taken from the buffers where they are. They are private: whatever
depends on their names is in the files of the stages, DeepSpeed is pinned (0.19.8), and the tests in
``tests/several_ranks`` compare every stage with plain torch.

Each stage also makes the fragment table: where in the flat masters this rank has which elements. LAMB needs it for the
norms of whole parameters, and checkpoints for naming what they store. A mistake in it would not raise an error: LAMB
would scale some weights by another parameter's trust ratio, the loss would fall all the same, and a checkpoint would
permute the model. Therefore

- offsets are computed from addresses, from where the model's tensors are in DeepSpeed's flat buffers. DeepSpeed has a
  table of its own (``_hp_mapping``), which is wrong with round-robin gradients;
- the values are checked: every fragment of a master, rounded to the model's precision, equals the model's weights;
- the number of elements is checked: over all ranks, every parameter is held exactly once.

The first check finds a fragment in a wrong place, the second one that is missing or held twice. Both run once, when the
engine is built.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megabert.ops.lamb.reference import sums_of_squares
from megabert.optim import Fragment


class Unsharded:
    """Stage 0: DeepSpeed leaves parameters, gradients and optimizer as torch made them."""

    is_replicated = True
    """Whether every rank holds all masters."""

    def __init__(self, engine: Any) -> None:
        """Make the fragment table of a ``DeepSpeedEngine``.

        Raises:
            RuntimeError: The layout is not the one that this file was written for.
        """
        self.engine = engine
        self.optimizer = engine.optimizer
        self.world_size, self.device = dist.get_world_size(), engine.device
        self._reduced: dict[str, Tensor] = {}
        self.names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
        self.fragments = list(self._fragments())
        """Which elements of the float32 masters this rank holds."""

    def _fragments(self) -> Iterator[Fragment]:
        """Yield every parameter whole: each is a flat of its own."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                yield Fragment(parameter, 0, self.names[id(parameter)], 0, parameter.numel())

    @property
    def gradient_multiple(self) -> float:
        """How many times the gradient of the global batch is in what ``sum_of_squares`` and the optimizer see."""
        return self.world_size

    def before_forward(self) -> None:
        """Make the weights ready that the model uses outside of its layers."""

    def after_forward(self) -> None:
        """Check that the model had all of its weights."""

    def settle(self) -> None:
        """Wait until all weights are those of the last update."""

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Accumulate the gradients of a micro-step, the last one of a step or not."""
        loss.backward()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's name and what this rank has accumulated of its gradient, before the optimizer runs."""
        for name, parameter in self.engine.module.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def sum_of_squares(self) -> Tensor:
        """Reduce what is not reduced yet. Return this rank's part of the sum of squares of the reduced gradient.

        Returns:
            A float64 scalar on the device. Over all ranks these add up to the square of the gradient's norm, times the
            square of ``gradient_multiple``; the sum is finite exactly if every element is.
        """
        named = dict(self.gradients())
        gradients = [gradient.view(-1) for gradient in named.values()]
        if self.world_size > 1:
            # The sum is a copy: where a NaN came from can be seen in the rank's own gradients only.
            flat = torch.cat(gradients)
            dist.all_reduce(flat)
            gradients = list(flat.split([gradient.numel() for gradient in gradients]))
            self._reduced = dict(zip(named, gradients, strict=True))
        return self._squares(gradients) / self.world_size  # every rank has all of them

    def start_update(self) -> None:
        """Launch the update of the weights; it does nothing where ``optimizer.gradient_scale`` turns out to be 0."""
        own = dict(self.gradients())
        parameters = {self.names[id(p)]: p for group in self.optimizer.param_groups for p in group["params"]}
        for name, reduced in self._reduced.items():
            parameters[name].grad = reduced.view_as(parameters[name])
        self.optimizer.step()
        # Back to the rank's own: should an element not be finite, these tell which ranks it came from.
        for name in self._reduced:
            parameters[name].grad = own[name]

    def finish_update(self) -> None:
        """End a step: its update was made, since all gradients turned out to be finite."""
        self.discard()

    def discard(self) -> None:
        """Drop the accumulated gradients."""
        self._reduced = {}
        self.engine.zero_grad()

    def refresh(self) -> None:
        """Do nothing: the model's weights are the masters."""

    def _squares(self, gradients: list[Tensor]) -> Tensor:
        """Return the sum of squares of flat tensors, in float64."""
        return sums_of_squares(gradients, self.device).sum()


class Partitioned(Unsharded):
    """Stages 1 and 2: a rank holds a partition of the masters of each parameter group."""

    is_replicated = False

    def _groups(self) -> Iterator[tuple[list[nn.Parameter], Tensor, Tensor]]:
        """Yield the parameters of each group, the flat buffer of the model's weights, and this rank's master."""
        optimizer = self.optimizer
        return zip(
            optimizer.bit16_groups, optimizer.bit16_groups_flat, optimizer.single_partition_of_fp32_groups, strict=True
        )

    def _fragments(self) -> Iterator[Fragment]:
        """Yield the overlaps of the parameters and this rank's partition.

        A group's parameters are one flat buffer, cut into equal partitions without regard to where parameters begin;
        rank r has the master of partition r.
        """
        for parameters, model_flat, master in self._groups():
            begin = dist.get_rank() * master.numel()
            for parameter in parameters:
                # DeepSpeed has made each parameter a view of the flat buffer: its address says where it begins.
                position = (parameter.data_ptr() - model_flat.data_ptr()) // parameter.element_size()
                first, end = max(position, begin), min(position + parameter.numel(), begin + master.numel())
                if first < end:
                    name, start = self.names[id(parameter)], first - position
                    weights = parameter.detach().view(-1)[start : end - position]
                    yield checked(Fragment(master, first - begin, name, start, end - first), weights)


def checked(fragment: Fragment, weights: Tensor) -> Fragment:
    """Return a fragment whose master holds the model's weights; a 16-bit model was rounded from its master."""
    if not torch.equal(fragment.view().to(weights.dtype), weights):
        raise RuntimeError(
            f"{fragment.parameter}[{fragment.start}:{fragment.start + fragment.numel}] is not at offset "
            f"{fragment.offset} of its float32 master: DeepSpeed lays parameters out in an unknown way."
        )
    return fragment


def check_coverage(stage: Unsharded, shapes: dict[str, torch.Size], group: dist.ProcessGroup) -> None:
    """Check that the ranks together hold as many elements of every parameter as it has.

    Args:
        stage: This rank's table, and whether each rank has to hold everything by itself.
        shapes: Whole shape of every parameter.
        group: A CPU group of all ranks, for one all-reduce of a count per parameter.

    Raises:
        RuntimeError: Naming the parameters with missing or surplus elements, on every rank.
    """
    held = dict.fromkeys(shapes, 0)
    for fragment in stage.fragments:
        held[fragment.parameter] += fragment.numel
    counts = torch.tensor(list(held.values()), dtype=torch.int64)
    if not stage.is_replicated:
        dist.all_reduce(counts, group=group)
    wrong = [
        f"{name}: {count} of {shape.numel()}"
        for (name, shape), count in zip(shapes.items(), counts.tolist(), strict=True)
        if count != shape.numel()
    ]
    if wrong:
        raise RuntimeError(f"The fragment table does not cover the model: {'; '.join(wrong)}.")
