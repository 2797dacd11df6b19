"""All tasks of a GLUE folder, each in a process of its own, and the table of their scores."""

import json
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from megabert.command_line.signals import run_child
from megabert.distributed.environments import describe_rank, find_launcher
from megabert.errors import CheckpointError, ConfigError, DataError, MegabertError
from megabert.files import atomic_write
from megabert.finetuning.results import GLUE_NAME, UNIT, Summary, in_points, read_summary
from megabert.finetuning.tasks import GLUE, TASKS, Task
from megabert.observability.logs import logger
from megabert.path_arguments import takes_paths
from megabert.text_tables import render_table


@takes_paths
def run_glue(data: Path, output_dir: Path, flags: Sequence[str], *, launcher: str = "") -> dict[str, Summary]:
    """Fine-tune every task of a folder; tasks and seeds that have finished are not trained again.

    Each task is a process of its own, because a model and an engine belong to one head.

    Args:
        data: Folder with GLUE's folders (CoLA, SST-2, ...). Missing ones are left out, and the log says so.
        output_dir: The folder in which each task gets a folder.
        flags: Flags of ``megabert finetune`` for every task.
        launcher: Words before ``megabert finetune``, such as ``torchrun --nproc_per_node 2 -m``.

    Returns:
        The summary of each task, by its name; nothing with --dry-run among the flags.

    Raises:
        ConfigError: It was started on several ranks.
        DataError: The folder has none of the tasks.
        MegabertError: A task failed.
    """
    if find_launcher() is not None and int(describe_rank()["WORLD_SIZE"]) > 1:
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
    summaries = {task.name: read_summary(output_dir / task.name) for task in present}
    for name, summary in summaries.items():
        if any(metric not in means for means in summary.mean.values() for metric in TASKS[name].metrics):
            raise CheckpointError(f"{output_dir / name}: lacks a metric of {name}. Run the same command again.")
    return summaries


def _run_task(task: Task, data: Path, folder: Path, flags: Sequence[str], launcher: str) -> None:
    start = [*shlex.split(launcher), "megabert"] if launcher else [sys.executable, "-m", "megabert"]
    paths = ["--data", str(data / str(task.glue_folder)), "--output-dir", str(folder)]
    command = [*start, "finetune", task.name, *paths, *flags]
    logger.info("%s", shlex.join(command))
    code = run_child(command)
    if code:
        remedy = "Fix it and run the same command again: finished tasks are kept."
        error = MegabertError(f"{task.name}: exit {code}; its message is above. {remedy}")
        error.exit_code = code if code > 0 else 1
        raise error


def glue_table(summaries: Mapping[str, Summary]) -> str:
    """Return the table of each task's metrics over its seeds, each beside the baseline, and the mean over tasks."""
    rows = [
        (str(TASKS[name].glue_folder), part, metric, summary.shown(part, metric), summary.baseline_shown(part, metric))
        for name, summary in summaries.items()
        for part in summary.mean
        for metric in TASKS[name].metrics
    ]
    mean = statistics.fmean(task_score(summary) for summary in summaries.values())
    rows.append(("mean", f"{len(summaries)} of {len(GLUE)} tasks", "", in_points("", mean), ""))
    headers = ("task", "set", "metric", "score", "constant answer")
    return f"GLUE: {UNIT}\n{render_table(rows, headers=headers, align='lllrr')}"


@takes_paths
def save_glue(output_dir: Path, summaries: Mapping[str, Summary]) -> str:
    """Write the scores as ``glue.json`` (fractions) and the table as ``glue.md``; return the table."""
    table = glue_table(summaries)
    content = {"tasks": {name: asdict(summary) for name, summary in summaries.items()}}
    atomic_write(output_dir / GLUE_NAME, json.dumps(content, indent=2) + "\n")
    atomic_write(output_dir / "glue.md", f"# GLUE\n\n```\n{table}\n```\n")
    return table


def task_score(summary: Summary) -> float:
    """Return a task's score: the mean of its metrics over all sets."""
    return statistics.fmean(means[metric] for means in summary.mean.values() for metric in TASKS[summary.task].metrics)
