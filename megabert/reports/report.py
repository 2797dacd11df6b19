"""What a run has learned, phase by phase, next to what a predictor without a model would score."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megabert.config.recipes import phase_data, phase_name
from megabert.config.run import RunConfig
from megabert.data.shard_set import ShardSet
from megabert.errors import CheckpointError
from megabert.observability.metrics import read_metrics
from megabert.reports.unigram_baseline import UnigramBaseline, fit_unigram
from megabert.text_tables import render_table
from megabert.training.run.folder import read_config


@dataclass(frozen=True, kw_only=True)
class PhaseReport:
    """One row of the table; losses in nats, accuracies as shares of 1."""

    index: int
    """Index of the phase in the configuration."""
    name: str
    steps: int
    first_mlm_loss: float
    last_mlm_loss: float
    held_out_mlm_loss: float
    held_out_mlm_accuracy: float
    unigram: UnigramBaseline
    nsp_accuracy: float | None
    """None where the shards have no sentence objective."""
    nsp_chance: float
    rtd_auc: float | None
    """Area under the curve of ELECTRA's discriminator; 0.5 is guessing. None for the other families."""
    sequences_per_s: float

    @property
    def margin(self) -> float:
        """How far the held-out loss is below the unigram predictor's, in nats."""
        return self.unigram.loss - self.held_out_mlm_loss


def report_run(run_dir: Path) -> list[PhaseReport]:
    """Read a run's metrics and score the unigram baseline on the same held-out positions.

    Raises:
        CheckpointError: The run has no validated phase yet.
        DataError: The shards are no longer there.
    """
    config, rows = read_config(run_dir), read_metrics(run_dir)
    by_phase = [[row for row in rows if row.get("phase") == index + 1] for index in range(len(config.phases))]
    reports = [
        _report_phase(config, index, own)
        for index, own in enumerate(by_phase)
        if any("eval/mlm_loss" in row for row in own) and any("train/mlm_loss" in row for row in own)
    ]
    if not reports:
        raise CheckpointError(f"{run_dir}: no phase has been validated yet. Let the run continue, then ask again.")
    return reports


def render_reports(reports: list[PhaseReport]) -> str:
    """Return the reports as a table with a column for each phase; rows that no phase has are left out."""
    aucs = [report.rtd_auc for report in reports]
    rows = [
        ("phase", [report.name for report in reports]),
        ("steps", [f"{report.steps}" for report in reports]),
        ("masked-LM loss, first", [f"{report.first_mlm_loss:.3f}" for report in reports]),
        ("masked-LM loss, last", [f"{report.last_mlm_loss:.3f}" for report in reports]),
        ("held-out masked-LM loss", [f"{report.held_out_mlm_loss:.3f}" for report in reports]),
        ("  unigram baseline", [f"{report.unigram.loss:.3f}" for report in reports]),
        ("  nats below the baseline", [f"{report.margin:.3f}" for report in reports]),
        ("held-out masked-LM accuracy", [f"{100 * report.held_out_mlm_accuracy:.1f}%" for report in reports]),
        ("  unigram baseline", [f"{100 * report.unigram.accuracy:.1f}%" for report in reports]),
        ("held-out next-sentence accuracy", [_percent(report.nsp_accuracy) for report in reports]),
        ("  chance (the larger class)", [_percent(report.nsp_accuracy and report.nsp_chance) for report in reports]),
        ("held-out discriminator AUC", ["-" if auc is None else f"{auc:.3f}" for auc in aucs]),
        ("sequences/s", [f"{report.sequences_per_s:.0f}" for report in reports]),
    ]
    rows = [row for row in rows if row[1] != ["-"] * len(reports)]
    return render_table([(name, *cells) for name, cells in rows], align="l" + "r" * len(reports))


def draw_losses(run_dir: Path, reports: list[PhaseReport], path: Path) -> None:
    """Draw training and held-out masked-LM loss over steps, the unigram baseline and the phases into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    plot_losses(axes, read_metrics(run_dir), reports)
    axes.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def plot_losses(axes: Any, rows: list[dict[str, Any]], reports: Sequence[PhaseReport]) -> None:
    """Plot the losses, and the baseline of each phase that ``reports`` has, onto a pair of axes."""
    train = [(row["step"], row["train/mlm_loss"]) for row in rows if "train/mlm_loss" in row]
    held_out = [(row["step"], row["eval/mlm_loss"]) for row in rows if "eval/mlm_loss" in row]
    if train:
        axes.plot(*zip(*train, strict=True), color="tab:blue", linewidth=1, label="training")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color="tab:orange", marker="o", markersize=3, label="held out")
    begin = 0  # first step of the phase on the common axis
    for report in reports:
        end = begin + report.steps
        axes.hlines(report.unigram.loss, begin, end, color="tab:gray", linestyle="--", label="" if begin else "unigram")
        if begin:
            axes.axvline(begin, color="black", linewidth=0.5)
        axes.annotate(report.name, ((begin + end) / 2, 1.01), xycoords=("data", "axes fraction"), ha="center")
        begin = end
    axes.set_ylabel("masked-LM loss (nats)")
    if train or held_out:
        axes.legend(loc="upper right")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _report_phase(config: RunConfig, index: int, rows: list[dict[str, Any]]) -> PhaseReport:
    phase = config.phases[index]
    folder = phase_data(config, phase)
    held_out = ShardSet.open(folder, "validation")
    limit = config.validation.max_instances
    train_rows = [row for row in rows if "train/mlm_loss" in row]
    last_eval = [row for row in rows if "eval/mlm_loss" in row][-1]
    labels = held_out.columns(((0, min(limit, held_out.num_rows)),)).next_sentence_labels
    share = float(labels.mean())
    return PhaseReport(
        index=index,
        name=f"{phase_name(config, index)} ({phase.max_seq_length})",
        steps=max(row.get("phase_step", 0) for row in train_rows),
        first_mlm_loss=train_rows[0]["train/mlm_loss"],
        last_mlm_loss=train_rows[-1]["train/mlm_loss"],
        held_out_mlm_loss=last_eval["eval/mlm_loss"],
        held_out_mlm_accuracy=last_eval["eval/mlm_accuracy"],
        unigram=fit_unigram(ShardSet.open(folder, "train"), held_out, max_instances=limit),
        nsp_accuracy=last_eval.get("eval/nsp_accuracy"),
        nsp_chance=max(share, 1 - share),
        rtd_auc=last_eval.get("eval/rtd_auc"),
        sequences_per_s=statistics.median_high(row["perf/sequences_per_s"] for row in train_rows),
    )
