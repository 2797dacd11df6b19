"""The ZeRO stages: which elements of which parameter a rank holds, where its gradients are, how weights are refreshed.

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) shards what data parallelism would keep on every rank. A *master* is
the float32 weight that the optimizer updates; *whole* means all elements of every parameter, *local* not yet reduced:

    stage                 sharded over ranks                      gradients between ``backward`` and ``step``
    0 (Unsharded)         nothing                                 whole and local, in ``parameter.grad``
    1 (Zero1, Bf16)       masters, moments                        whole and local, in float32 accumulators
    2 (Zero2)             masters, moments, gradients             reduced; this rank's window of each parameter group
    3 (Zero3)             masters, moments, gradients, weights    reduced; this rank's part of each parameter

DeepSpeed's documented access to a gradient (``safe_get_full_grad``) gathers one whole parameter from all ranks. The
finite check needs every gradient in every step, so it reads the buffers where they are. They are private: whatever
depends on their names is in this file, DeepSpeed is pinned (0.19.8), and the tests in ``tests/distributed`` compare
every stage with plain torch.

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
from torch import Tensor

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
        self.names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
        self.fragments = list(self._fragments())
        """Which elements of the float32 masters this rank holds."""

    def _fragments(self) -> Iterator[Fragment]:
        """Yield every parameter whole: each is a flat of its own."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                yield Fragment(parameter, 0, self.names[id(parameter)], 0, parameter.numel())

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's name and what this rank has accumulated of its gradient, before the optimizer runs."""
        for name, parameter in self.engine.module.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def discard(self) -> None:
        """Drop the accumulated gradients."""
        self.engine.zero_grad()

    def refresh(self) -> None:
        """Do nothing: the model's weights are the masters."""


class Zero1(Unsharded):
    """Stage 1 in float32 and float16: gradients are whole and local until ``step`` reduces them."""

    is_replicated = False

    def _groups(self) -> Iterator[tuple[list[Tensor], Tensor, Tensor]]:
        """Yield the parameters of each group, the flat buffer of the model's weights, and this rank's master."""
        optimizer = self.optimizer
        return zip(
            optimizer.bit16_groups, optimizer.bit16_groups_flat, optimizer.single_partition_of_fp32_groups, strict=True
        )

    def _fragments(self) -> Iterator[Fragment]:
        """Yield the overlaps of the parameters and this rank's window.

        A group's parameters are one flat buffer, cut into equal windows without regard to where parameters begin; rank
        r has the master of window r.
        """
        groups = zip(self._groups(), self.optimizer.real_dp_process_group, strict=True)
        for (parameters, model_flat, master), process_group in groups:
            window = dist.get_rank(group=process_group) * master.numel()
            for parameter in parameters:
                # DeepSpeed has made each parameter a view of the flat buffer: its address says where it begins.
                position = (parameter.data_ptr() - model_flat.data_ptr()) // parameter.element_size()
                first, end = max(position, window), min(position + parameter.numel(), window + master.numel())
                if first < end:
                    name, start = self.names[id(parameter)], first - position
                    weights = parameter.detach().view(-1)[start : end - position]
                    yield _checked(Fragment(master, first - window, name, start, end - first), weights)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole local gradients: the float32 ones, or the float32 accumulators of 16-bit ones."""
        for group in self.optimizer.bit16_groups:  # called so in float32, too
            for parameter in group:
                gradient = self.optimizer.get_gradient_for_reduction(parameter)
                if gradient is not None:
                    yield self.names[id(parameter)], gradient

    def discard(self) -> None:
        """Drop the accumulated gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def refresh(self) -> None:
        """Copy this rank's masters into the model's flat buffers and gather those of the other ranks."""
        self.optimizer.update_lp_params()


class Bf16(Zero1):
    """Stage 1 in bfloat16, for which DeepSpeed has an optimizer of its own: ``BF16_Optimizer``."""

    def _groups(self) -> Iterator[tuple[list[Tensor], Tensor, Tensor]]:
        """Yield what `Zero1` does, which has other names here."""
        optimizer = self.optimizer
        return zip(optimizer.bf16_groups, optimizer.bf16_groups_flat, optimizer.fp32_groups_flat_partition, strict=True)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole local float32 gradients."""
        for parameters, gradients in zip(self.optimizer.bf16_groups, self.optimizer.fp32_groups_gradients, strict=True):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                yield self.names[id(parameter)], gradient


class Zero2(Zero1):
    """Stage 2: each ``backward`` reduces, and a rank accumulates its own window of each parameter group."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's fragments of the reduced gradients."""
        optimizer = self.optimizer
        for index, master in enumerate(optimizer.single_partition_of_fp32_groups):
            mine = {fragment.parameter: fragment for fragment in self.fragments if fragment.flat is master}
            # In 16 bits there is one float32 buffer, laid out like the master ...
            accumulated = getattr(optimizer.averaged_gradients.get(index), "flat_partition", None)
            if accumulated is not None:
                yield from ((name, fragment.view(accumulated)) for name, fragment in mine.items())
                continue
            # ... and in float32 a list with a tensor for each parameter that the window touches. Of one that begins or
            # ends outside of the window only the elements inside are ours.
            gradients = optimizer.all_grad_tensors.get(index) or []
            for parameter, gradient in zip(optimizer.params_in_partition[index], gradients, strict=False):
                fragment = mine[self.names[id(parameter)]]
                yield fragment.parameter, gradient.view(-1).narrow(0, fragment.start, fragment.numel)

    def discard(self) -> None:
        """Drop the accumulated gradients, the reduced ones included."""
        super().discard()
        for index in range(len(self.optimizer.bit16_groups)):
            self.optimizer.averaged_gradients[index] = None
            self.optimizer.all_grad_tensors[index] = None


class Zero3(Unsharded):
    """Stage 3: each ``backward`` reduces, and a rank accumulates its part of every parameter in one buffer."""

    is_replicated = False

    def _fragments(self) -> Iterator[Fragment]:
        """Yield this rank's parts.

        Every parameter is cut into as many equal parts as there are ranks, and a rank's parts of a sub-group are one
        flat buffer. The last part is padded, with uninitialised memory: padding is never part of a fragment.
        """
        groups = zip(
            self.optimizer.fp16_groups,
            self.optimizer.fp16_partitioned_groups_flat,
            self.optimizer.fp32_partitioned_groups_flat,
            self.optimizer.sub_group_process_groups,
            strict=True,
        )
        for parameters, model_flat, master, process_group in groups:
            rank = dist.get_rank(group=process_group)
            for parameter in parameters:
                partition = parameter.ds_tensor
                # ds_numel of the partition counts its padding, that of the parameter does not.
                start = rank * partition.ds_numel
                numel = max(0, min(partition.ds_numel, parameter.ds_numel - start))
                if numel:
                    offset = (partition.data_ptr() - model_flat.data_ptr()) // partition.element_size()
                    fragment = Fragment(master, offset, self.names[id(parameter)], start, numel)
                    yield _checked(fragment, partition.detach().view(-1)[:numel])

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's part of each reduced gradient; its padding is zero."""
        position = 0
        for group in self.optimizer.fp16_groups:  # called so in every precision
            for parameter in group:
                numel = parameter.partition_numel()
                yield self.names[id(parameter)], self.optimizer.grad_partitions_flat_buffer.narrow(0, position, numel)
                position += numel

    def discard(self) -> None:
        """Drop the accumulated gradients: the same calls that DeepSpeed makes after an fp16 overflow."""
        self.optimizer._pre_step()
        self.optimizer._partition_all_parameters()
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.averaged_gradients = {}
        self.optimizer.grad_partitions_flat_buffer.zero_()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy masters into this rank's parts of the weights, and gather the small parameters that all ranks keep."""
        optimizer = self.optimizer
        optimizer._partition_all_parameters()
        for sub_group in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(sub_group)
        # Below stage3_param_persistence_threshold elements, fetching a parameter would cost more than keeping it.
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)


def stage_of(engine: Any) -> Unsharded:
    """Return the access that fits a ``DeepSpeedEngine``."""
    kinds = {0: Unsharded, 1: Zero1, 2: Zero2, 3: Zero3}
    is_bf16 = hasattr(engine.optimizer, "bf16_groups")
    return Bf16(engine) if is_bf16 else kinds[int(engine.zero_optimization_stage())](engine)


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


def _checked(fragment: Fragment, weights: Tensor) -> Fragment:
    """Return a fragment whose master holds the model's weights; a 16-bit model was rounded from its master."""
    if not torch.equal(fragment.view().to(weights.dtype), weights):
        raise RuntimeError(
            f"{fragment.parameter}[{fragment.start}:{fragment.start + fragment.numel}] is not at offset "
            f"{fragment.offset} of its float32 master: DeepSpeed lays parameters out in an unknown way."
        )
    return fragment
