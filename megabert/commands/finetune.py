"""Train a head on labelled examples, and score it.

The scores are the task's official metrics. The same command resumes: finished seeds are kept, a killed one starts
again.

Several tasks, --epochs or --learning-rates make a grid: every set with every setting and seed, each cell a single run
in a process of its own. The setting with the best mean on the evaluation set is chosen; a test set, if there is one,
is scored once, with the choice. `glue` and `klue` stand for all of their tasks that --data holds, TASK=PATH for a set
of your own below --data. Tables are in results.md, a picture is results.png.

Arguments:
  --config FILE       YAML file with fields, before flags; repeatable, later ones win
  --output-dir DIR    folder of the results (default: runs/TASK)
  --epochs N          passes over the training data (default: 3.0); several make a grid
  --learning-rates X  grid: learning rates to try, in place of --learning-rate
  --processes N       grid: cells side by side (default: one per GPU, or 1 on a CPU)
  --start-from        grid: let RTE, MRPC and STS-B start from the best model of MNLI
  --launcher WORDS    grid: words before each cell's command

Examples:
  megabert finetune mrpc --model models/base --data glue/MRPC --output-dir runs/mrpc --seeds 5
  megabert finetune classification --model runs/base --data train.csv --eval-data dev.csv --text-column title
  megabert finetune squad --model models/base --data squad --learning-rate 5e-5 --epochs 2
  megabert finetune glue --model models/base --data glue --learning-rates 1e-5 3e-5 5e-5 --epochs 3 10 --seeds 5
  megabert finetune boolq classification=reviews --model models/base --data sets --processes 2
  torchrun --nproc_per_node 2 -m megabert finetune mnli --model models/base --data glue/MNLI
"""

import shlex
import time
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from megabert.distributed.environments import before_ranks_meet, own_rank
from megabert.downstream.finetuning.tasks import INTERMEDIATE, SUITES, TASKS, refuse_idle_settings
from megabert.foundation.errors import ConfigError
from megabert.settings.command_line.parser import Parser, bounded, number, refuse_flags, whole
from megabert.settings.command_line.terminal import loading
from megabert.settings.config.extensions import require_recorded
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import merge_layers, to_yaml

if TYPE_CHECKING:
    from megabert.downstream.finetuning.grid.cells import Grid

GRID_FLAGS = ("--launcher", "--processes", "--start-from")
MOST_PROCESSES = 1024
MOST_CELLS = 100_000


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    width = max(map(len, TASKS))
    tasks = "\n".join(f"  {task.name:<{width}}  {task.about}" for task in TASKS.values())
    parser.epilog = f"Tasks:\n{tasks}\n\n{parser.epilog}"
    text = f"what to learn: {', '.join((*TASKS, *SUITES))}, or TASK=PATH"
    parser.add_argument("task", metavar="TASK", nargs="+", help=text)
    # One file a flag: a second one would be taken for the task.
    parser.add_argument("--config", type=Path, action="append", default=[])
    parser.add_argument("--output-dir")
    parser.add_device()
    parser.add_argument("--epochs", type=bounded(number, above=0, most=10_000), nargs="+", default=[])
    rate = bounded(number, above=0, most=1000)
    parser.add_argument("--learning-rates", type=rate, action="extend", nargs="+", default=[])
    parser.add_argument("--processes", type=bounded(whole, least=1, most=MOST_PROCESSES))
    parser.add_argument("--start-from", choices=INTERMEDIATE)
    parser.add_argument("--launcher", type=_words)
    parser.add_rule("--launcher", excludes=["--processes"])
    parser.add_rule("--learning-rates", excludes=["--learning-rate"])
    parser.add_stops(dry_run="check model, data and settings, and tell the time of a grid")
    data = ("model", "data", "eval-data", "output-dir")
    schedule = ("epochs", "global-batch-size", "learning-rate", "max-seq-length", "seeds")
    grid = ("learning-rates", "processes", "start-from")
    parser.add_fields(FinetuneConfig, first=(*data, *schedule, *grid))
    del parser.fields["epochs"]  # an option of the command: a grid takes several


def _words(text: str) -> str:
    """Check that the shell's quotes of some words are closed."""
    try:
        if not shlex.split(text):
            raise ArgumentTypeError("there is no word; give one, or set the variable that holds it")
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no list of words ({error})") from None
    return text


def run(options: Namespace) -> None:
    """Train and print the scores."""
    # The settings, and the flags that have no effect on these tasks.
    output_dir = Path(options.output_dir or f"runs/{options.task[0].partition('=')[0]}")
    with before_ranks_meet():
        require_recorded(output_dir / "finetune.json", "package")
        grid = _grid(options)
        config, has_form = grid.config, len(options.task) > 1 or options.task[0] in SUITES or "=" in options.task[0]
        is_grid = has_form or len(grid.settings) > 1 or options.processes is not None
        tasks, are_folders = [one.task for one in grid.sets], all(one.data.is_dir() for one in grid.sets)
        refuse_idle_settings(options.fields, tasks, config, are_folders=are_folders)
        if not is_grid:
            refuse_flags(GRID_FLAGS, options.given, f"on the task {options.task[0]} with one setting")
        elif len(grid.sets) > 1:
            refuse_flags(["--eval-data"], options.given, "on several sets")
    if options.print_config:
        print(to_yaml(config), end="")
        return
    with before_ranks_meet():
        from megabert.downstream.export.model_folder import kind_of_folder

        kind_of_folder(config.model)  # refuses another folder before the seconds that torch takes
    (_run_grid if is_grid else _run_single)(options, grid, output_dir)


def _grid(options: Namespace) -> "Grid":
    """Return the tasks and settings that the flags name; a single run is a grid of one setting."""
    from megabert.downstream.finetuning.grid.cells import Grid, Setting, check_tasks, find_sets

    check_tasks(options.task)  # before the settings: without a task their errors say little
    # A single value is the setting itself; of several, the first stands for them until a cell has its own.
    given = {"learning_rate": options.learning_rates, "epochs": options.epochs}
    one = {name: values[0] for name, values in given.items() if values}
    config = merge_layers(FinetuneConfig, *options.config, {**options.fields, **one})
    rates, epochs = options.learning_rates or [config.learning_rate], options.epochs or [config.epochs]
    for flag, values in (("--learning-rates", rates), ("--epochs", epochs)):
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise ConfigError(f"{flag}: {twice[0]:g} is there twice. Name each value once.")
    settings = tuple(Setting(rate, count) for rate in rates for count in epochs)
    sets = find_sets(options.task, config, has_files=not options.print_config)
    cells = len(sets) * len(settings) * config.seeds
    if cells > MOST_CELLS:
        raise ConfigError(f"{cells:,} cells are more than {MOST_CELLS:,}. Take fewer values or --seeds.")
    source = options.start_from
    if source is not None and source not in {one.name for one in sets}:
        raise ConfigError(f"--start-from {source}: {source} is not among the tasks. Add it, or leave the flag out.")
    return Grid(config=config, sets=sets, settings=settings, start_from=source)


def _run_single(options: Namespace, grid: "Grid", output_dir: Path) -> None:
    task, config = grid.sets[0].task, grid.config
    if options.dry_run:
        with loading("PyTorch"):
            from megabert.downstream.finetuning.finetune import check_finetuning, lacks_gpu

        prepared = check_finetuning(task, config, output_dir, device=options.device)
        sizes = ", ".join(f"{len(found)} of {name}" for name, found, _ in prepared.evaluation)
        print(prepared.describe())
        print(f"{task.name}: {len(prepared.train)} items to train on, {sizes} to evaluate on; nothing was written")
        if lacks_gpu(options.device):
            print("this machine has no GPU: that a step fits into the job's was not checked")
        return
    with loading("PyTorch"):
        from megabert.downstream.finetuning.finetune import finetune
    from megabert.downstream.finetuning.seed_results import render_summary

    summary = finetune(task, config, output_dir, device=options.device)
    if own_rank() == "0":
        print(render_summary(summary))


def _run_grid(options: Namespace, grid: "Grid", output_dir: Path) -> None:
    began = time.perf_counter() - time.process_time()  # with the start of the interpreter
    with loading("PyTorch"):
        from megabert.downstream.finetuning.grid.grid import GridRun
    how = {"processes": options.processes, "launcher": options.launcher or "", "import_s": time.perf_counter() - began}
    work = GridRun(grid, output_dir, device=options.device, **how)
    if options.dry_run:
        print(f"{work.plan()}\nevery task can start; nothing was written")
        return
    print(work.run())
    if work.error is not None:
        raise work.error
