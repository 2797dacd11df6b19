"""Train a head on labelled examples, and score it.

The scores are the task's official metrics. The same command resumes: seeds that have finished are kept, the one that
was killed starts again. `glue` runs every task of GLUE that --data holds, each in a process of its own; its table is
glue.json and glue.md of the output folder.

Examples:
  megabert finetune mrpc --model models/base --data glue/MRPC --output-dir runs/mrpc --seeds 5
  megabert finetune classification --model runs/base --data train.csv --eval-data dev.csv --text-column title
  megabert finetune squad --model models/base --data squad --learning-rate 5e-5 --epochs 2
  megabert finetune glue --model models/base --data glue --output-dir runs/glue
  torchrun --nproc_per_node 2 -m megabert finetune mnli --model models/base --data glue/MNLI
"""

import shlex
from argparse import ArgumentTypeError, Namespace
from pathlib import Path

from megabert.command_line.program import Parser, refuse_flags
from megabert.command_line.terminal import loading
from megabert.config.finetune import FinetuneConfig
from megabert.config.loading import merge_layers, to_dict, to_yaml
from megabert.config.needs import FINETUNE_NEEDS, refuse_idle
from megabert.distributed.environments import before_ranks_meet, own_rank
from megabert.finetuning.tasks import TASKS, find_task


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    width = max(map(len, TASKS))
    tasks = "\n".join(f"  {task.name:<{width}}  {task.about}" for task in TASKS.values())
    parser.epilog = f"Tasks:\n{tasks}\n\n{parser.epilog}"
    parser.add_argument("task", metavar="TASK", help=f"what to learn: {', '.join(TASKS)}, or glue")
    # One file a flag: a second one would be taken for the task.
    text = "YAML file with fields, before flags; repeatable, later ones win"
    parser.add_argument("--config", type=Path, action="append", default=[], metavar="FILE", help=text)
    parser.add_argument("--output-dir", metavar="DIR", help="folder of the results (default: runs/TASK)")
    parser.add_device()
    text = "glue: what comes before each task's command"
    parser.add_argument("--launcher", type=_words, metavar="WORDS", help=text)
    parser.add_stops(dry_run="check model, data and settings")
    data = ("model", "data", "eval-data", "text-column", "label-column", "output-dir")
    schedule = ("epochs", "global-batch-size", "learning-rate", "max-seq-length", "seeds")
    parser.add_fields(FinetuneConfig, first=(*data, *schedule))


def _words(text: str) -> str:
    """Check that the shell's quotes of some words are closed."""
    try:
        if not shlex.split(text):
            raise ArgumentTypeError("there is no word; give one, or set the variable that holds it")
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no list of words ({error})") from None
    return text


def run(options: Namespace) -> int:
    """Train and print the scores."""
    # The settings, and the flags that have no effect on this task. Glue has no settings of its own.
    with before_ranks_meet():
        if options.task != "glue":
            find_task(options.task)  # before the settings: without a task their errors say little
        config = merge_layers(FinetuneConfig, *options.config, options.fields)
        task = None if options.task == "glue" else find_task(options.task, config)
        kind = "none" if task is None else task.kind
        paths = [flag.path for flag in options.field_flags]
        refuse_idle(paths, {**to_dict(config), "kind of task": kind}, FINETUNE_NEEDS)
        if task is not None:
            refuse_flags(["--launcher"], options.given, f"on the task {task.name}")
    if options.print_config:
        print(to_yaml(config), end="")
        return 0
    with before_ranks_meet():
        from megabert.export.model_folder import kind_of_folder

        kind_of_folder(config.model)  # refuses another folder before the seconds that torch takes
    if task is None:
        return _run_glue(options, Path(config.data))
    # The work, from here on with torch.
    output_dir = Path(f"runs/{options.task}" if options.output_dir is None else options.output_dir)
    if options.dry_run:
        with loading("PyTorch"):
            from megabert.finetuning.setup import prepare

        prepared = prepare(task, config)
        sizes = ", ".join(f"{len(found)} of {name}" for name, found, _ in prepared.evaluation)
        print(f"{task.name}: {len(prepared.train)} items to train on, {sizes} to evaluate on; nothing was written")
        return 0
    with loading("PyTorch"):
        from megabert.finetuning.finetune import finetune
    from megabert.finetuning.results import render_summary

    summary = finetune(task, config, output_dir, device=options.device)
    if own_rank() == "0":
        print(render_summary(summary))
    return 0


def _run_glue(options: Namespace, data: Path) -> int:
    from megabert.finetuning.glue import run_glue, save_glue
    from megabert.observability.logs import log_to_stderr

    log_to_stderr(0)
    words = [word for path in options.config for word in ("--config", str(path))]
    words += ["--device", options.device, *(["--dry-run"] if options.dry_run else [])]
    # Each task has a --data of its own; the other flags go to all of them as they were given.
    words += [word for flag in options.field_flags if flag.path != "data" for word in flag.words]
    output_dir = Path("runs/glue" if options.output_dir is None else options.output_dir)
    summaries = run_glue(data, output_dir, words, launcher=options.launcher or "")
    print(save_glue(output_dir, summaries) if summaries else "every task can start; nothing was written")
    return 0
