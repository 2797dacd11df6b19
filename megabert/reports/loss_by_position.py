"""Held-out loss by what a predicted position shows: only [MASK] and random pieces ask the model for context.

80% of the positions to predict show [MASK], 10% their own piece, 10% a random one (Devlin et al. 2019, section 3.1). A
model that merely repeats what it sees gains half a nat in the mean; this table separates that from reading the context.
"""

# T packed tokens, M masked positions, V vocabulary

from dataclasses import dataclass
from pathlib import Path

import torch

from megabert.config.recipes import phase_data
from megabert.data.packing import shape_for
from megabert.data.shard_set import ShardSet
from megabert.data.step_packer import RankShare, validation_batches
from megabert.export.sources import open_source
from megabert.reports.unigram_baseline import UnigramBaseline
from megabert.text_tables import render_table
from megabert.training.run.folder import read_config

KINDS = ("[MASK]", "its own piece", "a random piece")
_BATCH_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class PositionLoss:
    """Mean losses in nats at the held-out positions of one kind."""

    kind: str
    count: int
    model: float
    unigram: float


@torch.no_grad()
def losses_by_position(
    run_dir: Path, unigram: UnigramBaseline, *, phase: int = -1, checkpoint: str = "last", max_instances: int = 256
) -> list[PositionLoss]:
    """Score a phase's held-out positions, kind by kind, on the CPU.

    Args:
        run_dir: Run folder.
        unigram: Baseline of the same phase, from `fit_unigram`.
        phase: Index of the phase in the configuration.
        checkpoint: ``last``, ``best`` or a step.
        max_instances: How many held-out instances are scored, the first ones.
    """
    config = read_config(run_dir)
    shards = ShardSet.open(phase_data(config, config.phases[phase]), "validation")
    model = open_source(str(run_dir), checkpoint).build_model().eval()
    shape = shape_for(
        shards.statistics,
        global_batch_size=max_instances,
        world_size=1,
        micro_batch_tokens=max(_BATCH_TOKENS, shards.metadata.max_seq_length),
    )
    # The same positions for both: the model's loss is in float64, the baseline's is minus the log of a frequency.
    counts = torch.from_numpy(unigram.counts).double()
    unigram_V = -(counts / counts.sum()).log()
    parts: list[torch.Tensor] = []
    for batch in validation_batches(shards, RankShare(shape=shape), max_instances=max_instances):
        logits_MV = model(batch, with_logits=True).mlm_logits_MV
        loss_M = torch.nn.functional.cross_entropy(logits_MV.double(), batch.masked_ids_M, reduction="none")
        seen_M = batch.input_ids_T[batch.masked_positions_M]
        # Index into KINDS: 0 shows [MASK], 1 its own piece, 2 another one.
        kind_M = torch.where(
            seen_M == shards.metadata.special_ids["mask"], 0, (seen_M != batch.masked_ids_M).long() + 1
        )
        parts.append(torch.stack([kind_M.double(), loss_M, unigram_V[batch.masked_ids_M]]))
    kinds_M, model_M, unigram_M = torch.cat(parts, dim=1)
    return [
        PositionLoss(
            kind=kind,
            count=int((kinds_M == index).sum()),
            model=float(model_M[kinds_M == index].mean()),
            unigram=float(unigram_M[kinds_M == index].mean()),
        )
        for index, kind in enumerate(KINDS)
    ]


def render_positions(losses: list[PositionLoss]) -> str:
    """Return the losses as a plain-text table."""
    headers = ("held-out masked-LM loss by what the position shows", "count", "model", "unigram")
    rows = [(f"  {loss.kind}", loss.count, f"{loss.model:.3f}", f"{loss.unigram:.3f}") for loss in losses]
    return render_table(rows, headers=headers, align="lrrr")
