"""The progress of a run, read from the files that it writes: for a terminal, while it runs or afterwards."""

import math
import os
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from megabert.config.loading import phase_name
from megabert.files import read_small
from megabert.observability.metrics import read_metrics
from megabert.observability.progress import seconds_left, span
from megabert.path_arguments import takes_paths
from megabert.training.recovery.heartbeat import SILENT_S, Beat, read_beats, slowest_ranks
from megabert.training.run.folder import checkpoints_dir, read_config
from megabert.training.run.status import StatusRecord, check_status

RECENT_ROWS = 20
"""How many of the newest rows the rate is the median of, so that one slow interval does not move it."""
_CURVE_LEVELS = " .:-=+*#%@"
_CURVE_WIDTH = 60


@dataclass(frozen=True, kw_only=True)
class RunOverview:
    """A run at one moment; fields are None or empty where it has not written anything yet."""

    run_dir: Path
    verdict: str
    error: str | None
    step: int
    """The step that the run is at, by its heartbeats and its status; of a run without them the last logged one."""
    logged_step: int
    """The step of the newest row."""
    total_steps: int
    phase: str
    phase_step: int
    phase_steps: int
    losses: list[float]
    """Masked-LM loss of every logged step, in order."""
    last: dict[str, Any]
    """The newest training row."""
    held_out: dict[str, Any]
    """The newest validation row."""
    sequences_per_s: float | None
    left_s: float | None
    """Seconds until the end at the present rate."""
    checkpoint_step: int | None
    checkpoint_age: str
    row_age: str
    """How long ago the newest row of metrics.jsonl was written."""
    starts: int
    waiting: str
    """Which ranks the other ranks wait for, read from their heartbeats; empty where there are none."""


@takes_paths
def read_overview(run_dir: Path) -> RunOverview:
    """Read a run's files.

    Raises:
        CheckpointError: The folder is no run folder.
    """
    config, rows, status = read_config(run_dir), read_metrics(run_dir), check_status(run_dir)
    train = [row for row in rows if "train/mlm_loss" in row]
    last = train[-1] if train else {}
    # A run that has logged nothing is in the phase that its status names, or in the first one.
    index = max(1, min(int(last.get("phase", status.phase or 1)), len(config.phases))) - 1
    logged_step, beats = int(rows[-1]["step"]) if rows else 0, read_beats(run_dir)
    step = _current_step(logged_step, status, beats)
    ends = list(accumulate(phase.num_steps for phase in config.phases))
    while index + 1 < len(ends) and step > ends[index]:
        index += 1
    phase = config.phases[index]
    phase_step = max(0, min(step, ends[index]) - (ends[index] - phase.num_steps))
    recent = [row for row in train[-RECENT_ROWS:] if row.get("phase") == last.get("phase")]
    rates = [row["perf/sequences_per_s"] for row in recent if row.get("perf/sequences_per_s")]
    rate = statistics.median_high(rates) if rates else None
    verdict = _verdict(status)
    return RunOverview(
        run_dir=run_dir,
        verdict=verdict,
        error=status.error,
        step=step,
        logged_step=logged_step,
        total_steps=sum(phase.num_steps for phase in config.phases),
        phase=phase_name(config, index),
        phase_step=phase_step,
        phase_steps=phase.num_steps,
        losses=[row["train/mlm_loss"] for row in train],
        last=last,
        held_out=next((row for row in reversed(rows) if "eval/mlm_loss" in row), {}),
        sequences_per_s=rate,
        left_s=seconds_left(config, index, phase_step, rate) if rate else None,
        checkpoint_step=_checkpoint_step(run_dir),
        checkpoint_age=_age(checkpoints_dir(run_dir) / "latest"),
        row_age=_age(run_dir / "metrics.jsonl") if rows else "none yet",
        starts=_starts(run_dir),
        waiting=slowest_ranks(beats, now=time.time()) if verdict == "running" else "",
    )


def render_overview(overview: RunOverview) -> str:
    """Return the overview as text."""
    done = 100 * overview.step / overview.total_steps
    lines = [
        f"{overview.run_dir}: {overview.verdict}",
        f"step {overview.step:,} of {overview.total_steps:,} ({done:.0f}%), "
        f"{overview.phase} {overview.phase_step:,} of {overview.phase_steps:,}{_left(overview)}",
    ]
    if overview.error:
        lines.append(f"  {overview.error}")
    if overview.waiting:
        lines.append(f"  {overview.waiting}")
    if overview.last:
        lines += ["", *_numbers(overview), "", *_curve(overview.losses)]
    restarts = max(0, overview.starts - 1)
    skipped, rollbacks = (overview.last.get(f"train/{name}", 0) for name in ("skipped_steps", "rollbacks"))
    step = overview.checkpoint_step
    checkpoint = "none yet" if step is None else f"step {step:,}, {overview.checkpoint_age}"
    lines += [
        "",
        f"last checkpoint  {checkpoint}",
        f"last row         {f'step {overview.logged_step:,}, ' if overview.logged_step else ''}{overview.row_age}",
        f"restarts         {restarts}",
        f"skipped steps    {skipped}, rollbacks {rollbacks}",
    ]
    return "\n".join(lines)


def _current_step(logged_step: int, status: StatusRecord, beats: Sequence[Beat]) -> int:
    """Return the step that a run is at: rows are written every few steps, heartbeats every few seconds."""
    newest = max((beat.time for beat in beats), default=0.0)
    # Heartbeats of ranks that an earlier start had are older than those of the present one.
    present = [beat.step for beat in beats if newest - beat.time <= SILENT_S]
    return max([logged_step, status.step or 0, *present])


def _numbers(overview: RunOverview) -> list[str]:
    # A tag that a row lacks is shown as nan.
    row, held_out = defaultdict(lambda: math.nan, overview.last), defaultdict(lambda: math.nan, overview.held_out)
    rate = overview.sequences_per_s or math.nan
    lines = [
        f"loss             {row['train/loss']:.4f} (masked-LM {row['train/mlm_loss']:.4f})",
        f"learning rate    {row['train/lr']:.3e}, gradient norm {row['train/grad_norm']:.3f}",
        f"rate             {rate:,.0f} sequences/s, {row['perf/tokens_per_s']:,.0f} tokens/s"
        + (f", MFU {row['perf/mfu_pct']:.1f}%" if "perf/mfu_pct" in row else "")
        + f", waiting for data {row['perf/data_wait_pct']:.1f}%",
    ]
    if held_out:
        lines.append(
            f"held out         masked-LM {held_out['eval/mlm_loss']:.4f}, accuracy "
            f"{100 * held_out['eval/mlm_accuracy']:.2f}% at step {held_out['step']:,}"
        )
    return lines


def _curve(losses: list[float]) -> list[str]:
    """Draw the losses as one line of characters: each is the mean of a few steps, and the higher it is, the darker."""
    # At most 60 runs of consecutive steps, as equal in length as whole numbers allow.
    width = min(_CURVE_WIDTH, len(losses))
    parts = [losses[i * len(losses) // width : (i + 1) * len(losses) // width] for i in range(width)]
    means = [sum(part) / len(part) for part in parts]
    # The lowest mean takes the first level, the highest the last; a mean that is not a number is shown as "?".
    low, high = min(means), max(means)
    span = high - low if high > low else 1.0
    top = len(_CURVE_LEVELS) - 1
    shares = [(mean - low) / span for mean in means]
    drawn = "".join(_CURVE_LEVELS[round(top * share)] if math.isfinite(share) else "?" for share in shares)
    return [f"masked-LM loss   |{drawn}| {means[0]:.3f} to {means[-1]:.3f}"]


def _verdict(status: StatusRecord) -> str:
    """Return the recorded verdict, corrected where a run says that it is running and its process is gone."""
    verdict = status.status
    if verdict == "running" and status.host == socket.gethostname() and not _is_alive(status.pid):
        return "killed (it said running, but its process is gone): the same command resumes it"
    if verdict == "stopped":
        return "stopped on a signal, saved: the same command resumes it"
    if verdict == "failed":
        return f"failed, exit code {status.exit_code}, rank {status.rank}"
    return verdict


def _is_alive(pid: int | None) -> bool:
    if pid is None:
        return True
    try:
        os.kill(pid, 0)
    except OSError as error:  # without permission it is another user's process
        return isinstance(error, PermissionError)
    return True


def _checkpoint_step(run_dir: Path) -> int | None:
    """Return the step that ``latest`` names."""
    try:
        return int(read_small(checkpoints_dir(run_dir) / "latest").decode("ascii").strip().removeprefix("step_"))
    except (OSError, ValueError):
        return None


def _starts(run_dir: Path) -> int:
    path = run_dir / "command.txt"
    return read_small(path).count(b"\n") if path.is_file() else 0


def _age(path: Path) -> str:
    """Return how long ago a file was written."""
    try:
        return f"{span(max(0.0, time.time() - path.stat().st_mtime))} ago"
    except OSError:
        return "none yet"


def _left(overview: RunOverview) -> str:
    """Return the time left, as the end of a line; nothing where no rate is known."""
    if overview.left_s is None:
        return ""
    is_done = overview.verdict == "done" or not overview.left_s
    return "; done" if is_done else f"; about {span(overview.left_s)} left"
