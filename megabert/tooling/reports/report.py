"""The scores of a run, phase by phase, next to a predictor that has no model and knows word frequencies alone.

`held_out_samples` gives held-out text with one word masked, for a report without a text of the user's.
"""

# T packed tokens, M masked positions, V vocabulary

import math
import statistics
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from megabert.data.dynamic_masking import DynamicMasker
from megabert.data.mixture import Mixture, open_mixture
from megabert.downstream.export.sources import open_source
from megabert.downstream.inspection.masked_lm import first_batches
from megabert.foundation.errors import CheckpointError
from megabert.foundation.text_tables import render_table
from megabert.observability.logs import pace
from megabert.observability.metrics import read_metrics
from megabert.settings.config.loading import phase_name
from megabert.settings.config.run import RunConfig
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.shard_set import ShardSet
from megabert.tokens.tokenization import Tokenizer, load_tokenizer
from megabert.training.run.folder import read_config, with_found_data

_SPAN_ROWS = 65_536


class UnigramBaseline(NamedTuple):
    """A unigram predictor of masked tokens.

    Attributes:
        counts: Int64 of shape (V,), how often each piece was a target in training, plus one.
        loss: Mean negative log-likelihood in nats on the held-out masked positions.
        accuracy: Share of them that are the most frequent piece.
    """

    counts: NDArray[np.float64]
    loss: float
    accuracy: float


def fit_unigram(train: Mixture, held_out: Mixture, *, max_instances: int) -> UnigramBaseline:
    """Fit on the training targets with add-one smoothing, score on the held-out masked positions.

    Of several sources the targets are weighted by the instances that the mixture takes of each.

    Args:
        train: Sources whose ``masked_lm_ids`` are all counted; where the loader draws the masks, epoch 0's are taken.
        held_out: Sources that are scored.
        max_instances: How many held-out instances are scored, the first ones, as in a validation.
    """
    # In blocks of rows, because a corpus' targets do not fit into memory at once.
    pieces = train.first.metadata.vocab_size
    counts, targets = np.ones(pieces), np.zeros(pieces, np.int64)
    whole = train.counts(range(train.num_rows))
    for source, taken in zip(train.sources, whole, strict=True):
        for first in range(0, source.num_rows, _SPAN_ROWS):
            columns = _masked_columns(source, first, min(first + _SPAN_ROWS, source.num_rows))
            counts += np.bincount(columns.masked_ids, minlength=pieces) * (taken / source.num_rows)
    for source, scored in held_out.scored(max_instances):
        targets += np.bincount(_masked_columns(source, 0, scored).masked_ids, minlength=pieces)
    log_probability = np.log(counts / counts.sum())
    total = max(1, int(targets.sum()))
    return UnigramBaseline(
        counts=counts,
        loss=float(-(targets * log_probability).sum() / total),
        accuracy=float(targets[counts.argmax()] / total),
    )


def _masked_columns(shards: ShardSet, first: int, stop: int) -> FlatInstances:
    """Return some rows, with the masks of a validation if they have none."""
    columns = shards.columns(((first, stop),))
    return columns if shards.has_masks else DynamicMasker(Mixture((shards,)), seed=0).mask(columns, 0)


@dataclass(frozen=True, kw_only=True)
class PhaseReport:
    """The scores of a phase; losses in nats."""

    index: int
    """Index of the phase in the configuration."""
    name: str
    begin: int
    """Step of the run after which the phase began. A fork has none before its own first phase."""
    steps: int
    held_out_mlm_loss: float
    unigram: UnigramBaseline
    cells: tuple[tuple[str, str], ...]
    """The phase's column of the table: the name of each row and the text under it, "-" if the phase has none."""


def report_run(run_dir: Path) -> list[PhaseReport]:
    """Read a run's metrics and score the unigram baseline on the same held-out positions.

    Raises:
        CheckpointError: The run has no validated phase yet.
        DataError: The shards are no longer there.
    """
    config, rows = with_found_data(run_dir, read_config(run_dir)), read_metrics(run_dir)
    by_phase = [[row for row in rows if row.get("phase") == index + 1] for index in range(len(config.phases))]
    reports = [
        _report_phase(config, index, own)
        for index, own in enumerate(by_phase)
        if any("eval/mlm_loss" in row for row in own) and any("train/mlm_loss" in row for row in own)
    ]
    if not reports:
        raise CheckpointError(f"{run_dir / 'metrics.jsonl'}: no phase has been validated yet. Ask again later.")
    return reports


def render_reports(reports: list[PhaseReport]) -> str:
    """Return the reports as a table with a column for each phase; rows that no phase has are left out."""
    columns = [[text for _, text in report.cells] for report in reports]
    rows = [(name, *texts) for (name, _), *texts in zip(reports[0].cells, *columns, strict=True)]
    return render_table([row for row in rows if set(row[1:]) != {"-"}], align="l" + "r" * len(reports))


def _report_phase(config: RunConfig, index: int, rows: list[dict[str, Any]]) -> PhaseReport:
    phase = config.phases[index]
    train = [row for row in rows if "train/mlm_loss" in row]
    scores = [row for row in rows if "eval/mlm_loss" in row][-1]
    loss, accuracy = scores["eval/mlm_loss"], scores.get("eval/mlm_accuracy", math.nan)
    # The baselines are scored on the instances of a validation: word frequencies, and the larger class of pairs.
    (trained_on, held_out), limit = open_mixture(config, index), config.validation.max_instances
    unigram = fit_unigram(trained_on, held_out, max_instances=limit)
    labels = [source.columns(((0, count),)).next_sentence_labels for source, count in held_out.scored(limit)]
    share = float(np.concatenate(labels).mean())
    # Shards without a sentence objective have no accuracy of it, families other than ELECTRA no discriminator.
    pairs, auc = scores.get("eval/nsp_accuracy"), scores.get("eval/rtd_auc")
    rate = statistics.median_high(row.get("perf/sequences_per_s", math.nan) for row in train)
    steps = max(row.get("phase_step", 0) for row in train)
    name, sources = f"{phase_name(config, index)} ({phase.max_seq_length})", sorted(config.data.sources or ())
    cells = (
        ("phase", name),
        ("steps", f"{steps}"),
        ("masked-LM loss, first", f"{train[0]['train/mlm_loss']:.3f}"),
        ("masked-LM loss, last", f"{train[-1]['train/mlm_loss']:.3f}"),
        ("held-out masked-LM loss", f"{loss:.3f}"),
        ("  unigram baseline", f"{unigram.loss:.3f}"),
        ("  nats below the baseline", f"{unigram.loss - loss:.3f}"),
        ("held-out masked-LM accuracy", _shown(accuracy)),
        ("  unigram baseline", _shown(unigram.accuracy)),
        ("held-out next-sentence accuracy", _shown(pairs)),
        ("  chance (the larger class)", _shown(pairs and max(share, 1 - share))),
        ("held-out discriminator AUC", _shown(auc, ".3f")),
        ("sequences/s", pace(rate)),
        *((f"passes over {each}", _shown(train[-1].get(f"progress/epochs/{each}"), ".2f")) for each in sources),
    )
    return PhaseReport(
        index=index,
        name=name,
        begin=train[-1]["step"] - train[-1].get("phase_step", 0),
        steps=steps,
        held_out_mlm_loss=loss,
        unigram=unigram,
        cells=cells,
    )


def _shown(value: float | None, form: str = ".1%") -> str:
    return "-" if value is None else format(value, form)


KINDS = ("[MASK]", "its own piece", "a random piece")
_POSITION_ROWS = 256
"""How many held-out instances are scored position by position, the first ones."""
_BATCH_TOKENS = 8192


@dataclass(frozen=True)
class KindLoss:
    """Held-out losses in nats of the positions that show one thing."""

    kind: str
    """The piece that they show, one of ``KINDS``."""
    count: int
    """Number of positions."""
    model: float
    """Mean loss of the model; not a number without positions."""
    unigram: float
    """Mean loss of the unigram baseline at the same positions."""


@torch.no_grad()
def score_positions(run_dir: Path, report: PhaseReport, *, checkpoint: str) -> list[KindLoss]:
    """Score a phase's held-out positions on the CPU, kind by kind in the order of ``KINDS``.

    80% of the positions to predict show [MASK], 10% their own piece, 10% a random one (Devlin et al. 2019, section
    3.1). A model that merely repeats its input gains half a nat in the mean. Scores by kind tell this from reading the
    context, which only [MASK] and random pieces ask for.

    Args:
        run_dir: Run folder.
        report: The phase's report.
        checkpoint: ``last``, ``best`` or a step.
    """
    held_out = open_mixture(with_found_data(run_dir, read_config(run_dir)), report.index).held_out
    model = open_source(str(run_dir), checkpoint).build_model()
    # The same positions for both: the model's loss is in float64, the baseline's is minus the log of a frequency.
    counts = torch.from_numpy(report.unigram.counts).double()
    unigram_V = -(counts / counts.sum()).log()
    parts: list[torch.Tensor] = []
    scored = held_out.scored(_POSITION_ROWS)
    for batch in chain.from_iterable(first_batches(*own, batch_tokens=_BATCH_TOKENS) for own in scored):
        logits_MV = model(batch, with_logits=True).mlm_logits_MV
        loss_M = torch.nn.functional.cross_entropy(logits_MV.double(), batch.masked_ids_M, reduction="none")
        seen_M = batch.input_ids_T[batch.masked_positions_M]
        # Index into KINDS: 0 shows [MASK], 1 its own piece, 2 another one.
        is_mask_M = seen_M == held_out.first.metadata.special_ids["mask"]
        kind_M = torch.where(is_mask_M, 0, (seen_M != batch.masked_ids_M).long() + 1)
        parts.append(torch.stack([kind_M.double(), loss_M, unigram_V[batch.masked_ids_M]]))
    kinds_M, *losses = torch.cat(parts, dim=1)
    return [
        KindLoss(kind, int(chosen_M.sum()), *(float(loss_M[chosen_M].mean()) for loss_M in losses))
        for kind, chosen_M in ((kind, kinds_M == index) for index, kind in enumerate(KINDS))
    ]


def render_positions(losses: list[KindLoss]) -> str:
    """Return the losses of each kind of position as a table."""
    rows = [(f"  {row.kind}", row.count, *(f"{loss:.3f}" for loss in (row.model, row.unigram))) for row in losses]
    headers = ("held-out masked-LM loss by what the position shows", "count", "model", "unigram")
    return render_table(rows, headers=headers, align="lrrr")


_AROUND = 12
"""Pieces that are shown on each side of the mask."""
_TRIED = 8
"""Instances that are looked at for each sample; some have no whole word among their masked positions."""


def held_out_samples(run_dir: Path, phase: int, *, count: int = 5) -> list[tuple[str, str]]:
    """Return texts with one mask each, and the words that they had there.

    Args:
        run_dir: Run folder.
        phase: Index of the phase whose held-out split is taken.
        count: Number of samples at most. Each comes from its own part of the split, the same one each time.
    """
    held_out = open_mixture(with_found_data(run_dir, read_config(run_dir)), phase).held_out
    tokenizer, parts = load_tokenizer(held_out.first.tokenizer_dir), []
    for number, shards in zip(range(count), cycle(held_out.sources), strict=False):
        rows = np.unique(np.linspace(0, shards.num_rows - 1, _TRIED * count).astype(int))
        parts.append([_sample_of(row, shards, tokenizer) for row in np.array_split(rows, count)[number].tolist()])
    return [next(sample for sample in part if sample is not None) for part in parts if any(part)]


def _sample_of(row: int, shards: ShardSet, tokenizer: Tokenizer) -> tuple[str, str] | None:
    """Return the first sample of an instance, if it has one."""
    columns = _masked_columns(shards, row, row + 1)
    ids_T, positions_M = columns.input_ids.astype(np.int64), columns.masked_positions.astype(np.int64)
    ids_T[positions_M] = columns.masked_ids  # the text as it was
    return next(filter(None, (_sample_at(ids_T, position, tokenizer) for position in positions_M.tolist())), None)


def _sample_at(ids_T: NDArray[np.int64], position: int, tokenizer: Tokenizer) -> tuple[str, str] | None:
    """Return the text around a position with the mask there, and its word; None if its piece is no whole word."""
    is_part_T = tokenizer.is_subword[ids_T]
    word = tokenizer.decode(ids_T[position : position + 1]).strip()
    if is_part_T[position] or is_part_T[position + 1] or not word.isalpha():
        return None
    # From one special piece to the next, and no further than the window; words that it cuts are left out.
    special_M = np.flatnonzero(np.isin(ids_T, [tokenizer.special_ids.cls, tokenizer.special_ids.sep]))
    place = int(np.searchsorted(special_M, position))
    first = max(int(special_M[place - 1]) + 1, position - _AROUND)
    stop = min(int(special_M[place]), position + 1 + _AROUND)
    while first < position and is_part_T[first]:
        first += 1
    while stop > position + 1 and is_part_T[stop]:
        stop -= 1
    before, after = (tokenizer.decode(part).strip() for part in (ids_T[first:position], ids_T[position + 1 : stop]))
    return f"{before} {tokenizer.names.mask} {after}".strip(), word
