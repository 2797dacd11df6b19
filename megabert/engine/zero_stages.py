"""The ZeRO stages: which elements of which parameter a rank holds, how its gradients are reduced and weights updated.

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) shards what data parallelism would keep on every rank. A *master* is
the float32 weight that the optimizer updates; *whole* means all elements of every parameter, *local* not yet reduced:

    stage                 sharded over ranks                      gradients between ``backward`` and ``step``
    0 (Unsharded)         nothing                                 whole and local, in ``parameter.grad``
    1 (Zero1, Bf16)       masters, moments                        whole and local, in float32 buckets
    2 (Zero2)             masters, moments, gradients             reduced; this rank's window of each bucket
    3 (Zero3)             masters, moments, gradients, weights    reduced; this rank's part of each parameter

Stage 3 is DeepSpeed's own: it reduces, clips, updates and gathers. At stages 0 to 2 it lays out weights and masters,
and what is sent is ours: its stages 1 and 2 all-reduce where a reduce-scatter is enough, and hide nothing behind the
backward pass (docs/decisions.md).

DeepSpeed's documented access to a gradient (``safe_get_full_grad``) gathers one whole parameter from all ranks. The
norm needs every gradient in every step, so it is taken from the buffers where they are. They are private: whatever
depends on their names is in the files of the stages, DeepSpeed is pinned (0.19.8), and the tests in
``tests/distributed`` compare every stage with plain torch.

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

from typing import Any

import torch
import torch.distributed as dist

from megabert.engine.exchange import Flat, TwoLegs
from megabert.engine.unsharded import Unsharded
from megabert.engine.zero1_zero2 import Bf16, Zero1, Zero2
from megabert.engine.zero3 import Zero3


def stage_of(engine: Any, exchange: Flat | TwoLegs, *, overlaps: bool) -> Unsharded:
    """Return the stage of a ``DeepSpeedEngine``.

    Args:
        engine: The engine.
        exchange: How stages 1 and 2 send gradients and weights.
        overlaps: At stages 1 and 2, whether gradients are sent during the backward pass; at stage 3 DeepSpeed knows.
    """
    stage = int(engine.zero_optimization_stage())
    if stage in (0, 3):
        return Unsharded(engine) if stage == 0 else Zero3(engine)
    kind = Zero2 if stage == 2 else Bf16 if hasattr(engine.optimizer, "bf16_groups") else Zero1
    return kind(engine, exchange, overlaps=overlaps)


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
