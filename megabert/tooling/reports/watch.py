"""The progress of a run, read from the files that it writes: for a terminal, while it runs or afterwards."""

import math
import os
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import Signals
from typing import Any, NamedTuple

from megabert.foundation.files import read_small
from megabert.foundation.text_tables import span
from megabert.observability.logs import pace, seconds_left
from megabert.observability.metrics import read_metrics
from megabert.settings.command_line.signals import ENDING
from megabert.settings.config.loading import phase_name
from megabert.settings.config.run import RunConfig
from megabert.training.probes.minimal_pairs import describe_probes
from megabert.training.recovery.watchdog import SILENT_S, Beat, read_beats, slowest_ranks
from megabert.training.run.folder import checkpoints_dir, read_config
from megabert.training.run.status import StatusRecord, check_status

Row = Mapping[str, Any]
RECENT_ROWS = 20
"""How many of the newest rows the rate is the median of."""
_CURVE_LEVELS = " .:-=+*#%@"
_CURVE_WIDTH = 60


class RunOverview(NamedTuple):
    """A run at one moment."""

    verdict: str
    text: str
    """All about the run, for a terminal."""


def read_overview(run_dir: Path) -> RunOverview:
    """Read a run's files.

    Raises:
        CheckpointError: The folder is no run folder.
    """
    config, rows = read_config(run_dir), read_metrics(run_dir)
    status = check_status(run_dir)
    verdict = describe_verdict(status)
    # A rank that is stopped may have been in a step that was not made.
    beats = read_beats(run_dir) if verdict == "running" else []
    train = [row for row in rows if "train/mlm_loss" in row]
    last = train[-1] if train else {}

    step, index, begin = _step_and_phase(config, rows, last, status, beats)
    end, steps = begin + sum(phase.num_steps for phase in config.phases[index:]), config.phases[index].num_steps
    phase_step = max(0, min(step - begin, steps))
    typical = _typical_row(train)
    rate = typical and typical["perf/sequences_per_s"]
    # The rate of the previous phase says nothing about this one, which has another length.
    left_s = seconds_left(config, index, phase_step, rate) if rate and last.get("phase") == index + 1 else None
    time_left = "; done" if verdict == "done" else f"; about {span(left_s)} left" if left_s else ""
    # The text, from the most urgent to the history: place and time left, errors, numbers, checkpoints.
    lines = [
        f"{run_dir}: {verdict}",
        f"step {step:,} of {end:,} ({100 * step / end:.0f}%), "
        f"{phase_name(config, index)} {phase_step:,} of {steps:,}{time_left}",
    ]
    lines += [f"  {text}" for text in (status.error, slowest_ranks(beats)) if text]
    if train:
        held_out: Row = next((row for row in reversed(rows) if "eval/mlm_loss" in row), {})
        lines += ["", *_numbers(last, held_out, typical or last), "", _curve([row["train/mlm_loss"] for row in train])]
    lines += ["", *_history(run_dir, rows, last)]
    return RunOverview(verdict, "\n".join(lines))


def _step_and_phase(
    config: RunConfig, rows: Sequence[Row], last: Row, status: StatusRecord, beats: Sequence[Beat]
) -> tuple[int, int, int]:
    """Return the step that a run is at, the index of its phase, and the step at which that phase began."""
    # Rows are written every few steps, heartbeats every few seconds. A rank of an earlier start has an older heartbeat.
    newest = max((beat.time for beat in beats), default=0.0)
    present = [beat.step for beat in beats if newest - beat.time <= SILENT_S]
    step = max([int(rows[-1]["step"]) if rows else 0, status.step or 0, *present])
    # A run that has logged nothing is in the phase that its status names, or in the first one.
    index = max(1, min(int(last.get("phase", status.phase or 1)), len(config.phases))) - 1
    # A fork may have cut earlier phases short: the last row knows how far its own phase was.
    begin = sum(phase.num_steps for phase in config.phases[:index])
    if "phase_step" in last:
        begin = int(last["step"]) - int(last["phase_step"])  # type: ignore[arg-type]
    while index + 1 < len(config.phases) and step > begin + config.phases[index].num_steps:
        begin += config.phases[index].num_steps
        index += 1
    return step, index, begin


def _typical_row(train: Sequence[Row]) -> Row | None:
    """Return the row with the median of the sequences per second in the newest row's phase; None before one is known.

    All rates that are shown come from it, so that one slow interval moves none of them and they agree.
    """
    # The first step of a phase also compiles.
    recent = [row for row in train[-RECENT_ROWS:] if row.get("phase") == train[-1].get("phase")]
    rated = [row for row in recent if row.get("phase_step") != 1 and row.get("perf/sequences_per_s")]
    rated.sort(key=lambda row: row["perf/sequences_per_s"])
    return rated[len(rated) // 2] if rated else None


def _numbers(last: Row, held_out: Row, typical: Row) -> list[str]:
    """Return lines with the numbers of the newest training row, its phase's rates and the newest validation row."""
    # A tag that a row lacks is shown as nan.
    row, scores, rates = (defaultdict(lambda: math.nan, values) for values in (last, held_out, typical))
    lines = [
        f"loss             {row['train/loss']:.4f} (masked-LM {row['train/mlm_loss']:.4f})",
        f"learning rate    {row['train/lr']:.3e}, gradient norm {row['train/grad_norm']:.3f}",
        f"rate             {pace(rates['perf/sequences_per_s'])} sequences/s, "
        f"{pace(rates['perf/tokens_per_s'])} tokens/s"
        + (f", MFU {rates['perf/mfu_pct']:.1f}%" if "perf/mfu_pct" in rates else "")
        + f", waiting for data {rates['perf/data_wait_pct']:.1f}%",
    ]
    if held_out:
        accuracy = f"{100 * scores['eval/mlm_accuracy']:.2f}% at step {scores['step']:,}"
        lines.append(f"held out         masked-LM {scores['eval/mlm_loss']:.4f}, accuracy {accuracy}")
        lines += [f"minimal pairs    {text}" for text in [describe_probes(held_out)] if text]
    return lines


def _history(run_dir: Path, rows: Sequence[Row], last: Row) -> list[str]:
    """Return lines about checkpoints, rows, restarts and skipped steps."""
    latest = checkpoints_dir(run_dir) / "latest"
    saved = row = "none yet"
    with suppress(OSError, ValueError):
        step = int(read_small(latest).decode("ascii").strip().removeprefix("step_"))
        saved = f"step {step:,}, {_age(latest)}"
    if rows:
        number = int(rows[-1]["step"])
        row = f"{f'step {number:,}, ' if number else ''}{_age(run_dir / 'metrics.jsonl')}"
    command = run_dir / "command.txt"
    starts = read_small(command).count(b"\n") if command.is_file() else 0
    return [
        f"last checkpoint  {saved}",
        f"last row         {row}",
        f"restarts         {max(0, starts - 1)}",
        f"skipped steps    {last.get('train/skipped_steps', 0)}, rollbacks {last.get('train/rollbacks', 0)}",
    ]


def _curve(losses: list[float]) -> str:
    """Draw the losses as one line of characters: each is the mean of a few steps, and the higher it is, the darker."""
    # At most 60 runs of consecutive steps, as equal in length as whole numbers allow.
    width = min(_CURVE_WIDTH, len(losses))
    parts = [losses[i * len(losses) // width : (i + 1) * len(losses) // width] for i in range(width)]
    means = [sum(part) / len(part) for part in parts]
    # The lowest mean takes the first level, the highest the last; a mean that is not finite is shown as "?".
    finite = [mean for mean in means if math.isfinite(mean)] or [0.0]
    low, high = min(finite), max(finite)
    span = high - low if high > low else 1.0
    top = len(_CURVE_LEVELS) - 1
    shares = [(mean - low) / span for mean in means]
    drawn = "".join(_CURVE_LEVELS[round(top * share)] if math.isfinite(share) else "?" for share in shares)
    return f"masked-LM loss   |{drawn}| {means[0]:.3f} to {means[-1]:.3f}"


def describe_verdict(status: StatusRecord) -> str:
    """Return the recorded verdict, corrected if a run says that it is running and its process is gone."""
    if status.status == "running" and status.host == socket.gethostname() and not _is_alive(status.pid):
        return "killed (it said running, but its process is gone): the same command resumes it"
    number = (status.exit_code or 0) - 128
    if status.status == "failed" and number in ENDING:
        return f"ended by {Signals(number).name} before it could save: the same command resumes it"
    texts = {
        "stopped": "stopped on a signal, saved: the same command resumes it",
        "failed": f"failed, exit code {status.exit_code}, rank {status.rank}",
    }
    return texts.get(status.status, status.status)


def _is_alive(pid: int | None) -> bool:
    try:
        if pid is not None:
            os.kill(pid, 0)
    except (OSError, OverflowError) as error:  # without permission it is another user's process
        return isinstance(error, PermissionError)
    return True


def _age(path: Path) -> str:
    """Return how long ago a file was written."""
    try:
        return f"{span(max(0.0, time.time() - path.stat().st_mtime))} ago"
    except OSError:
        return "none yet"
