"""The fragment table: which elements of which parameter this rank holds, and where, at every ZeRO stage.

LAMB needs it for the norms of whole parameters, and checkpoints for naming what they store. A mistake in it would not
raise an error: LAMB would scale some weights by another parameter's trust ratio, the loss would fall all the same, and
a checkpoint would permute the model. Therefore

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


def parameter_shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
    """Return the whole shape of every trainable parameter by name, a tied weight once, in the module's order."""
    return {
        name: torch.Size(getattr(parameter, "ds_shape", parameter.shape))
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def fragment_table(engine: Any) -> list[Fragment]:
    """Return this rank's fragments of a ``DeepSpeedEngine`` of any stage.

    Raises:
        RuntimeError: The layout is not the one that this file was written for.
    """
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    optimizer = engine.optimizer
    stage = engine.zero_optimization_stage()
    if stage == 0:  # every parameter is a flat of its own
        return [
            Fragment(parameter, 0, names[id(parameter)], 0, parameter.numel())
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
    if stage == 3:
        return list(_partitioned(optimizer, names))
    # Stages 1 and 2: the parameters of a group, the flat buffer of the model's weights, and this rank's master.
    if hasattr(optimizer, "bf16_groups"):  # BF16_Optimizer, stage 1 in bfloat16
        groups = zip(
            optimizer.bf16_groups, optimizer.bf16_groups_flat, optimizer.fp32_groups_flat_partition, strict=True
        )
    else:
        groups = zip(
            optimizer.bit16_groups, optimizer.bit16_groups_flat, optimizer.single_partition_of_fp32_groups, strict=True
        )
    ranks = [dist.get_rank(group=group) for group in optimizer.real_dp_process_group]
    return [
        fragment
        for (parameters, model_flat, master), rank in zip(groups, ranks, strict=True)
        for fragment in _windowed(parameters, model_flat, master, rank, names)
    ]


def _windowed(
    parameters: list[Tensor], model_flat: Tensor, master: Tensor, rank: int, names: dict[int, str]
) -> Iterator[Fragment]:
    """Yield the fragments of a group at stage 1 or 2.

    The group's parameters are one flat buffer, cut into equal windows without regard to where parameters begin; rank r
    has the master of window r. A parameter's fragment is the overlap of the parameter and the window.
    """
    width = master.numel()
    window_start, window_end = rank * width, (rank + 1) * width
    for parameter in parameters:
        # DeepSpeed has made each parameter a view of the flat buffer: its address says where it begins.
        position = (parameter.data_ptr() - model_flat.data_ptr()) // parameter.element_size()
        first, end = max(position, window_start), min(position + parameter.numel(), window_end)
        if first < end:
            fragment = Fragment(master, first - window_start, names[id(parameter)], first - position, end - first)
            weights = parameter.detach().view(-1)[fragment.start : fragment.start + fragment.numel]
            _check_values(fragment, weights)
            yield fragment


def _partitioned(optimizer: Any, names: dict[int, str]) -> Iterator[Fragment]:
    """Yield the fragments of stage 3.

    Every parameter is cut into as many equal parts as there are ranks, and a rank's parts of a sub-group are one flat
    buffer. The last part is padded, with uninitialised memory, which is why padding is never part of a fragment.
    """
    groups = zip(
        optimizer.fp16_groups,
        optimizer.fp16_partitioned_groups_flat,
        optimizer.fp32_partitioned_groups_flat,
        optimizer.sub_group_process_groups,
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
                fragment = Fragment(master, offset, names[id(parameter)], start, numel)
                _check_values(fragment, partition.detach().view(-1)[:numel])
                yield fragment


def _check_values(fragment: Fragment, weights: Tensor) -> None:
    """Check that a fragment of a master holds the model's weights; a 16-bit model was rounded from its master."""
    if not torch.equal(fragment.view().to(weights.dtype), weights):
        raise RuntimeError(
            f"{fragment.parameter}[{fragment.start}:{fragment.start + fragment.numel}] is not at offset "
            f"{fragment.offset} of its float32 master: DeepSpeed lays parameters out in an unknown way."
        )


def check_coverage(
    fragments: list[Fragment], shapes: dict[str, torch.Size], *, group: dist.ProcessGroup, is_replicated: bool
) -> None:
    """Check that the ranks together hold as many elements of every parameter as it has.

    Args:
        fragments: This rank's table.
        shapes: Whole shape of every parameter.
        group: A CPU group of all ranks, for one all-reduce of a count per parameter.
        is_replicated: Whether each rank has to hold everything by itself.

    Raises:
        RuntimeError: Naming the parameters with missing or surplus elements, on every rank.
    """
    held = dict.fromkeys(shapes, 0)
    for fragment in fragments:
        held[fragment.parameter] += fragment.numel
    counts = torch.tensor(list(held.values()), dtype=torch.int64)
    if not is_replicated:
        dist.all_reduce(counts, group=group)
    wrong = [
        f"{name}: {count} of {shape.numel()}"
        for (name, shape), count in zip(shapes.items(), counts.tolist(), strict=True)
        if count != shape.numel()
    ]
    if wrong:
        raise RuntimeError(f"The fragment table does not cover the model: {'; '.join(wrong)}.")
