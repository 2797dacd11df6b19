"""The one fragment table, for every way in which DeepSpeed lays out parameters.

Offsets are read from where the model's tensors really lie in DeepSpeed's flat buffers, not from its own bookkeeping
(``_hp_mapping`` is wrong with round-robin gradients), and the table is proved twice when it is built: values of the
masters against the model's, and the sum of elements over ranks against each parameter's size.
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
    """Return this rank's fragments of a ``DeepSpeedEngine``: stage 0, 1, 2, BF16_Optimizer or 3."""
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    optimizer = engine.optimizer
    stage = engine.zero_optimization_stage()
    if stage == 0:
        return [
            Fragment(parameter, 0, names[id(parameter)], 0, parameter.numel())
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
    if stage == 3:
        return list(_partitioned(optimizer, names))
    if hasattr(optimizer, "bf16_groups"):  # BF16_Optimizer
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
    """Stages 1 and 2: the group is one flat buffer; a rank's master is a window of it."""
    width = master.numel()
    first, last = rank * width, (rank + 1) * width
    for parameter in parameters:
        position = (parameter.data_ptr() - model_flat.data_ptr()) // parameter.element_size()
        begin, end = max(position, first), min(position + parameter.numel(), last)
        if begin < end:
            fragment = Fragment(master, begin - first, names[id(parameter)], begin - position, end - begin)
            piece = parameter.detach().view(-1)[fragment.start : fragment.start + fragment.numel]
            _assert_covers_every_element(fragment, piece)
            yield fragment


def _partitioned(optimizer: Any, names: dict[int, str]) -> Iterator[Fragment]:
    """Stage 3: every parameter is split over all ranks; the last piece is padded with uninitialised memory."""
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
            start = rank * partition.ds_numel
            numel = max(0, min(partition.ds_numel, parameter.ds_numel - start))
            if numel:
                offset = (partition.data_ptr() - model_flat.data_ptr()) // partition.element_size()
                fragment = Fragment(master, offset, names[id(parameter)], start, numel)
                _assert_covers_every_element(fragment, partition.detach().view(-1)[:numel])
                yield fragment


def _assert_covers_every_element(fragment: Fragment, piece: Tensor) -> None:
    if not torch.equal(fragment.view().to(piece.dtype), piece):
        raise RuntimeError(
            f"{fragment.parameter}[{fragment.start}:{fragment.start + fragment.numel}] is not at offset "
            f"{fragment.offset} of its float32 master: DeepSpeed lays parameters out in an unknown way."
        )


def check_coverage(
    fragments: list[Fragment], shapes: dict[str, torch.Size], *, group: dist.ProcessGroup, replicated: bool
) -> None:
    """Check that the ranks together hold every element of every parameter exactly once (each alone if replicated)."""
    held = dict.fromkeys(shapes, 0)
    for fragment in fragments:
        held[fragment.parameter] += fragment.numel
    counts = torch.tensor(list(held.values()), dtype=torch.int64)
    if not replicated:
        dist.all_reduce(counts, group=group)
    wrong = [
        f"{name}: {count} of {shape.numel()}"
        for (name, shape), count in zip(shapes.items(), counts.tolist(), strict=True)
        if count != shape.numel()
    ]
    if wrong:
        raise RuntimeError(f"The fragment table does not cover the model: {'; '.join(wrong)}.")
