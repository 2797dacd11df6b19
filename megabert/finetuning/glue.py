"""All tasks of a GLUE folder, one process each, and their table."""

import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megabert.distributed.environments import describe_place, find_launcher
from megabert.errors import ConfigError, DataError, MegabertError
from megabert.finetuning.finetune import SUMMARY_NAME
from megabert.finetuning.tasks import GLUE, Task
from megabert.observability.logs import logger


def run_glue(data: Path, output_dir: Path, flags: Sequence[str], *, launcher: str = "") -> dict[str, dict[str, Any]]:
    """Fine-tune every task of a folder; tasks and seeds that have finished are not trained again.

    Each task is a process of its own: a model and an engine belong to one head.

    Args:
        data: Folder with GLUE's folders (CoLA, SST-2, ...); those that are missing are left out, and said.
        output_dir: Gets a folder a task.
        flags: Of ``megabert finetune``, for every task.
        launcher: Words before ``megabert finetune``, such as ``torchrun --nproc_per_node 2 -m``.

    Returns:
        The tasks' summaries, by name; nothing with --dry-run among the flags.

    Raises:
        ConfigError: Started on several ranks.
        DataError: No task there.
        MegabertError: A task failed.
    """
    if find_launcher() is not None and int(describe_place()["WORLD_SIZE"]) > 1:
        raise ConfigError(
            "finetune glue starts a process a task and cannot itself run on several ranks. Start it alone, and give "
            "it the launcher: --launcher 'torchrun --nproc_per_node 2 -m'"
        )
    present = [task for task in GLUE if (data / str(task.glue_folder)).is_dir()]
    if not present:
        names = ", ".join(str(task.glue_folder) for task in GLUE)
        raise DataError(f"{data}: no task of GLUE there; looked for the folders {names}.")
    missing = [str(task.glue_folder) for task in GLUE if task not in present]
    if missing:
        logger.warning("not in %s, left out: %s", data, ", ".join(missing))
    for task in present:
        _run_task(task, data, output_dir / task.name, flags, launcher)
    if "--dry-run" in flags:
        return {}
    return {
        task.name: json.loads((output_dir / task.name / SUMMARY_NAME).read_text(encoding="utf-8")) for task in present
    }


def _run_task(task: Task, data: Path, folder: Path, flags: Sequence[str], launcher: str) -> None:
    start = [*shlex.split(launcher), "megabert"] if launcher else [sys.executable, "-m", "megabert"]
    command = [*start, "finetune", task.name, "--data", str(data / str(task.glue_folder))]
    logger.info("%s", shlex.join([*command, "--output-dir", str(folder), *flags]))
    done = subprocess.run(
        [*command, "--output-dir", str(folder), *flags],
        stdout=subprocess.DEVNULL,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        error = MegabertError(
            f"{task.name}: exit {done.returncode}; its message is above. Mend it and run the same command again: "
            "tasks that have finished are kept."
        )
        error.exit_code = done.returncode if done.returncode > 0 else 1
        raise error


def glue_table(summaries: dict[str, dict[str, Any]]) -> str:
    """Return the table: each task's metrics, mean and deviation over seeds in points, and the mean over tasks."""
    tasks = {task.name: task for task in GLUE}
    rows, scores = [], []
    for name, summary in summaries.items():
        task = tasks[name]
        values = [summary["mean"][part][metric] for part in summary["mean"] for metric in task.metrics]
        scores.append(statistics.fmean(values))
        for part, means in summary["mean"].items():
            shown = ", ".join(
                f"{metric} {100 * means[metric]:.2f} +- {100 * summary['deviation'][part][metric]:.2f}"
                for metric in task.metrics
            )
            rows.append((str(task.glue_folder), part, shown))
    rows.append(("mean", f"{len(scores)} of {len(GLUE)} tasks", f"{100 * statistics.fmean(scores):.2f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)
