"""Checks of a rank's fragment table: which elements of which parameter are where in its flat float32 masters.

LAMB needs the table for the norms of whole parameters, and checkpoints to name their tensors. A mistake in it would not
raise an error: LAMB would scale some weights by another parameter's trust ratio, the loss would fall all the same, and
a checkpoint would permute the model. Therefore

- each stage computes offsets from addresses: where the model's tensors are in DeepSpeed's flat buffers. DeepSpeed has a
  table of its own (``_hp_mapping``), which is wrong with round-robin gradients;
- ``checked`` compares the values: every fragment of a master, rounded to the model's precision, equals the model's
  weights. It finds a fragment in a wrong place;
- ``check_coverage`` counts elements: over all ranks, every parameter is held exactly once. It finds a fragment that is
  missing or held twice.

Both checks run once, when the engine is built.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megabert.optim import Fragment


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
