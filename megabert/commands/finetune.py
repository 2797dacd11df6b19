"""``megabert finetune``: from weights and labelled examples to a score."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from megabert.commands.field_help import field_help
from megabert.config.finetune import FinetuneConfig
from megabert.config.loading import build, parse_flags, read_yaml, to_yaml
from megabert.distributed.environments import before_ranks_meet
from megabert.finetuning.tasks import TASKS, find_task

EXAMPLE = """\
examples:
  megabert finetune mrpc --model models/base --data glue/MRPC --output-dir runs/mrpc --seeds 5
  megabert finetune classification --model runs/base --data train.csv --eval-data dev.csv --text-column title
  megabert finetune squad --model models/base --data squad --learning-rate 5e-5 --epochs 2
  megabert finetune glue --model models/base --data glue --output-dir runs/glue
  torchrun --nproc_per_node 2 -m megabert finetune mnli --model models/base --data glue/MNLI

The same command goes on: seeds that have finished are kept, the one that was killed starts anew. `glue` runs every
task of GLUE that --data holds, each in a process of its own, and prints the table.
"""


def run(arguments: Sequence[str]) -> int:
    """Parse, train, print."""
    with before_ranks_meet():
        options, fields = _parser().parse_known_args(arguments)
        config = build(FinetuneConfig, *[read_yaml(Path(name)) for name in options.config], parse_flags(fields))
        columns = {"text": config.text_column, "pair": config.pair_column, "label": config.label_column}
        task = None if options.task == "glue" else find_task(options.task, **columns)
    if options.print_config:
        print(to_yaml(config), end="")
        return 0
    if task is None:
        return _run_glue(options, fields, Path(config.data))
    output_dir = Path(options.output_dir or f"runs/{options.task}")
    if options.dry_run:
        from megabert.finetuning.setup import prepare

        prepared = prepare(task, config)
        sizes = ", ".join(f"{len(found)} of {name}" for name, found, _ in prepared.evaluation)
        print(f"{task.name}: {len(prepared.train)} items to train on, {sizes} to evaluate on; nothing was written")
        return 0
    from megabert.distributed.environments import own_rank
    from megabert.finetuning.finetune import finetune

    summary = finetune(task, config, output_dir, device=options.device)
    if own_rank() == "0":
        _show(summary)
    return 0


def _show(summary: dict) -> None:
    for name, metrics in summary["mean"].items():
        for metric, value in metrics.items():
            spread = f" +- {summary['deviation'][name][metric]:.4f}" if len(summary["seeds"]) > 1 else ""
            print(f"{name}  {metric}  {value:.4f}{spread}")
    print(f"model  {summary['best_model']}")


def _run_glue(options: argparse.Namespace, fields: Sequence[str], data: Path) -> int:
    from megabert.finetuning.glue import glue_table, run_glue
    from megabert.observability.logs import log_to_stderr

    log_to_stderr(0)
    words = [word for name in options.config for word in ("--config", name)]
    words += ["--device", options.device, *(["--dry-run"] if options.dry_run else []), *_without_data(fields)]
    summaries = run_glue(data, Path(options.output_dir or "runs/glue"), words, launcher=options.launcher or "")
    print(glue_table(summaries) if summaries else "every task can start; nothing was written")
    return 0


def _without_data(fields: Sequence[str]) -> list[str]:
    """Return the flags but ``--data``: each task has its own folder."""
    kept, rest = [], iter(fields)
    for word in rest:
        if word == "--data":
            next(rest, None)
        elif not word.startswith("--data="):
            kept.append(word)
    return kept


def _parser() -> argparse.ArgumentParser:
    fields = field_help(FinetuneConfig, has_hyphens=True)
    parser = argparse.ArgumentParser(
        prog="megabert finetune",
        description="Fine-tune a BERT on labelled examples and score it with the task's official metrics.",
        epilog=f"tasks:\n{_tasks()}\n\nfields, with defaults:\n{fields}\n\n{EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("task", metavar="TASK", help=f"{', '.join(TASKS)}, or glue")
    parser.add_argument("--config", action="append", default=[], metavar="FILE", help="YAML with fields; repeatable")
    parser.add_argument("--output-dir", metavar="DIR", help="folder of the results (default: runs/TASK)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto, a GPU if any")
    parser.add_argument("--launcher", metavar="WORDS", help="of glue: before each task's command")
    parser.add_argument("--dry-run", action="store_true", help="check model, data and settings, stop")
    parser.add_argument("--print-config", action="store_true", help="print the resolved settings, stop")
    return parser


def _tasks() -> str:
    width = max(map(len, TASKS))
    return "\n".join(f"  {task.name:<{width}}  {task.about}" for task in TASKS.values())
