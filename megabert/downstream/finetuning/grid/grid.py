"""A grid of fine-tunings, run side by side: sets, rates, epochs and seeds.

1. Every set is read and checked, and a few of its steps are measured (``survey``).
2. Each cell (``cells``) is a single run, ``megabert finetune`` with one seed, in a process and a folder of its own.
   Cells that have finished are kept, so the same command continues a grid that was killed. A cell that fails is
   recorded and told, and the others go on.
3. The setting with the best mean on the evaluation set is chosen; a test set is scored once, with the choice
   (``grid_results``).
"""

import gc
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from megabert.distributed.environments import describe_rank, find_launcher
from megabert.distributed.process_group import World, distributed_world
from megabert.distributed.run_lock import RunLock
from megabert.downstream.finetuning import seed_results
from megabert.downstream.finetuning.finetune import fixed_settings, has_finished, lacks_gpu
from megabert.downstream.finetuning.grid.cells import Cell, Grid, LabelledSet, Setting
from megabert.downstream.finetuning.grid.grid_results import GridResult, SetResult, choose_setting, read_grid, save_grid
from megabert.downstream.finetuning.grid.survey import Survey, survey
from megabert.downstream.finetuning.saved_model import rescore
from megabert.foundation.errors import CheckpointError, ConfigError, MegabertError
from megabert.foundation.files import atomic_write, open_to_read, remove_killed_writes, sha256_file
from megabert.foundation.text_tables import span
from megabert.observability.logs import log_to_stderr, logger
from megabert.settings.command_line.arguments import Device
from megabert.settings.command_line.signals import run_children
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import to_yaml

AXES = ("learning_rate", "epochs", "seed")
"""Settings that differ from cell to cell; a grid may grow along them."""
GROWING = ("tasks", "sha256")
"""Fields of `GridSettings` to which a further call may add sets."""
TEMPORARIES = ("*/.rate_*.tmp",)
"""Temporary files of a killed grid. A cell that is run again removes its own."""
_GIB = 1 << 30
_SHOWN = 400
"""Characters of a failed cell's message that the log repeats."""


class GridRun:
    """A grid and its folder: `plan` checks and estimates it, `run` makes it."""

    def __init__(
        self, grid: Grid, output_dir: Path, *, device: Device, processes: int | None, launcher: str, import_s: float
    ) -> None:
        """Find the places for cells.

        Args:
            grid: The grid.
            output_dir: A new folder, or the folder of a grid with the same settings and data.
            device: The device to train on; ``auto`` takes GPUs if there are any.
            processes: Cells side by side; None takes one per GPU, or one on a CPU.
            launcher: Words before ``megabert finetune``, such as ``torchrun --nproc_per_node 2 -m``.
            import_s: Seconds that a command's imports take, for the estimate.

        Raises:
            ConfigError: It was started on several ranks.
        """
        if find_launcher() is not None and int(describe_rank()["WORLD_SIZE"]) > 1:
            raise ConfigError(
                "a grid starts a process per cell and cannot itself run on several ranks. Start it alone, and give it "
                "the launcher: --launcher 'torchrun --nproc_per_node 2 -m'"
            )
        self.grid, self.output_dir, self.device, self.launcher = grid, output_dir, device, launcher
        self.import_s = import_s
        gpus = 0 if device == "cpu" else torch.cuda.device_count()
        self.slots = _slots(processes or (1 if launcher else max(1, gpus)), gpus, has_launcher=bool(launcher))
        self.surveys: dict[str, Survey] = {}
        self.models: dict[str, str] = {}
        self.left_out: set[str] = set()
        self.error: MegabertError | None = None
        self._total_s, self._done_s, self._began = 0.0, 0.0, 0.0

    def plan(self) -> str:
        """Check every set and the folder, and return the time that the grid will take; nothing is written.

        With ``cuda`` on a machine without a GPU no time is measured: a login node may have none.

        Raises:
            CheckpointError: The folder holds another grid, or something else.
            MegabertError: A set or the model is not sound.
        """
        with nullcontext() if lacks_gpu(self.device) else distributed_world(self.device) as world:
            self.survey(world)
        seed_results.check_folder(self.output_dir / seed_results.GRID_NAME, self._settings(), grows=GROWING)
        self.recall_models()
        return self.estimate()

    def run(self) -> str:
        """Run every cell that has not finished, choose, write the results, and return their tables.

        Cells may have failed: ``error`` is the error of the first one, with its exit code.

        Raises:
            CheckpointError: The folder holds another grid, or something else.
            MegabertError: A set or the model is not sound.
        """
        log_to_stderr(0)
        with distributed_world(self.device) as world, RunLock(self.output_dir, world):
            self.survey(world)
            seed_results.claim_folder(self.output_dir / seed_results.GRID_NAME, self._settings(), grows=GROWING)
            remove_killed_writes(self.output_dir, TEMPORARIES)
            self.recall_models()
            logger.info("%s", self.estimate())
            self._total_s, self._began = sum(map(self._seconds, self._pending(self.grid.sets))), time.perf_counter()
            result = GridResult(sets={})
            for wave in self.grid.waves():
                finished = self._run_cells(self._pending([one for one in wave if one.name not in self.left_out]))
                for labelled in wave:
                    result.sets[labelled.name] = self._choose(labelled, finished)
                    self._pass_on(labelled, result.sets[labelled.name])
            result = GridResult(sets={one.name: result.sets[one.name] for one in self.grid.sets})
            return save_grid(self.output_dir, self._with_earlier(result))

    def survey(self, world: World | None) -> None:
        """Check all sets before anything is written, so that a bad seventh one is not found after a day.

        Args:
            world: A world of one rank, to measure steps in; None measures none.
        """
        for labelled in self.grid.sets:
            config = self._config(self.grid.cells_of(labelled)[0])
            self.surveys[labelled.name] = survey(labelled, config, world)
            if world is not None and world.device.type == "cuda":  # the cells need the memory
                gc.collect()
                torch.cuda.empty_cache()
        if self.grid.config.learning_rate == "auto":  # the only rate: several are numbers
            rate = next(iter(self.surveys.values())).config.learning_rate
            settings = tuple(one._replace(learning_rate=rate) for one in self.grid.settings)
            self.grid = self.grid._replace(settings=settings)
        # The first set paid for imports that every cell will pay for, and the command for others.
        longest_s = self.import_s + max(one.build_s for one in self.surveys.values())
        self.surveys = {name: one._replace(build_s=longest_s) for name, one in self.surveys.items()}

    def recall_models(self) -> None:
        """Let sets start from the model of an earlier call's choice, if all cells that it is chosen from are there."""
        for labelled in self.grid.sets:
            if labelled.name == self.grid.start_from and not self._pending([labelled]):
                self._pass_on(labelled, self._choose(labelled, set()))

    def _choose(self, labelled: LabelledSet, finished: set[Cell]) -> SetResult:
        """Choose among a set's cells; ``finished`` are known to have finished, the others are looked at."""
        cells = self.grid.cells_of(labelled)
        own = {cell for cell in cells if cell in finished or self._has_finished(cell)}
        return choose_setting(self.output_dir, labelled, cells, own)

    def _with_earlier(self, result: GridResult) -> GridResult:
        """Add earlier results of sets that this call left out, and score test sets that were not scored with these
        models.
        """
        before: dict[str, SetResult] = {}
        if (self.output_dir / seed_results.SUMMARY_NAME).is_file():
            try:
                before = read_grid(self.output_dir).sets
            except CheckpointError as error:
                again = "The test sets are scored again; sets left out of this call return once named."
                logger.warning("%s %s", error, again)
        for labelled in self.grid.sets:
            own, path = result.sets[labelled.name], self.surveys[labelled.name].test
            if path is not None and own.chosen is not None and own.summary is not None:
                setting = Setting(own.chosen.learning_rate, own.chosen.epochs)
                folders = [Cell(labelled, setting, seed).seed_folder(self.output_dir) for seed in own.summary.seeds]
                sources = [sha256_file(path), *(sha256_file(folder / seed_results.RESULT_NAME) for folder in folders)]
                earlier = before.get(labelled.name)
                is_scored = earlier is not None and earlier.test_sources == sources
                test = earlier.test if earlier and is_scored else self._score_test(own.summary, folders, path)
                result.sets[labelled.name] = replace(own, test=test, test_sources=sources)
        return GridResult(sets=before | result.sets)

    def _score_test(self, summary: seed_results.Summary, folders: Sequence[Path], path: Path) -> seed_results.Summary:
        """Return the choice's scores on a test file."""
        logger.info("%s: the test set is scored with the choice", path)
        scores = [rescore(folder / "model", path, device=self.device) for folder in folders]
        means = seed_results.over_seeds([{path.stem: one.metrics} for one in scores])
        return replace(summary, **means, baseline={path.stem: scores[0].baseline})

    def _settings(self) -> seed_results.GridSettings:
        """Return which grid the folder is to record."""
        shared = {name: value for name, value in fixed_settings(self.grid.config).items() if name not in AXES}
        return seed_results.GridSettings(
            settings={**shared, "start_from": self.grid.start_from},
            tasks={one.name: one.task.name for one in self.grid.sets},
            sha256={name: one.identity for name, one in self.surveys.items()},
        )

    def _config(self, cell: Cell) -> FinetuneConfig:
        """Return the settings of a cell's run, with the weights that it starts from and the length that fits these."""
        name = cell.labelled.name
        config = self.grid.config_of(cell, self.models.get(name, self.grid.config.model))
        known = self.surveys[name].config if name in self.surveys else config
        return replace(config, max_seq_length=known.max_seq_length)

    def _has_finished(self, cell: Cell) -> bool:
        """Tell whether a cell has its result and its model, and was run on this task with these settings."""
        folder = cell.folder(self.output_dir)
        path = folder / seed_results.SETTINGS_NAME
        if not path.is_file() or not has_finished(folder, cell.seed):
            return False
        # One of other settings, such as another model of MNLI to start from, is run: it is refused there, with a diff.
        recorded = seed_results.read_settings(path, seed_results.FinetuneSettings)
        return (recorded.task, recorded.settings) == (cell.labelled.task.name, fixed_settings(self._config(cell)))

    def _pending(self, sets: Sequence[LabelledSet]) -> list[Cell]:
        return [cell for one in sets for cell in self.grid.cells_of(one) if not self._has_finished(cell)]

    def _seconds(self, cell: Cell) -> float:
        return self.surveys[cell.labelled.name].seconds(cell.setting, self.grid.config)

    def estimate(self) -> str:
        """Return the number of cells, and the time and the space that they will take."""
        pending, grid = self._pending(self.grid.sets), self.grid
        cells = len(grid.sets) * len(grid.settings) * len(grid.seeds)
        sizes = f"{len(grid.sets)} sets x {len(grid.settings)} settings x {len(grid.seeds)} seeds"
        counts = f"{cells} cells ({sizes}), {cells - len(pending)} of them finished"
        if grid.config.learning_rate == "auto":
            counts += f"\n{next(iter(self.surveys.values())).rate}"
        size = sum(self.surveys[cell.labelled.name].model_bytes for cell in pending)
        space = f"{size / _GIB:.1f} GiB for their models"
        if lacks_gpu(self.device):
            unknown = "this machine has no GPU: no step was measured, so the time of the cells is not known"
            return f"{counts}\nthe other {len(pending)} need {space}\n{unknown}"
        rates = [
            f"  {name}: {grid.config.global_batch_size / one.step_s:,.0f} examples/s, {one.train_items:,} to train on, "
            f"{one.start_s:.0f} s to start"
            for name, one in self.surveys.items()
        ]
        total_s = sum(map(self._seconds, pending)) / len(self.slots)
        side_by_side = f"{len(self.slots)} at a time" if len(self.slots) > 1 else "one after the other"
        total = f"the other {len(pending)} will take about {span(total_s)}, {side_by_side}, and {space}"
        busy = "measured just now, on a machine as busy as it is; each cell that ends corrects it"
        return "\n".join([counts, *rates, total, busy])

    def _run_cells(self, cells: Sequence[Cell]) -> set[Cell]:
        """Run cells side by side; return the finished ones."""
        folders = [cell.folder(self.output_dir) for cell in cells]
        commands = [self._command(cell, folder) for cell, folder in zip(cells, folders, strict=True)]
        logs = [folder.with_name(f"{folder.name}.log") for folder in folders]
        begins = [log.stat().st_size if log.is_file() else 0 for log in logs]  # an earlier failure's messages stay
        finished = set()
        for number, code in run_children(commands, logs=logs, slots=self.slots):
            cell = cells[number]
            self._done_s += self._seconds(cell)
            left = span((time.perf_counter() - self._began) * (self._total_s / self._done_s - 1))
            if code == 0 and self._has_finished(cell):
                finished.add(cell)
                logger.info("%s: finished; about %s left", cell, left)
            else:
                self._tell_failure(cell, code, logs[number], begins[number])
        return finished

    def _command(self, cell: Cell, folder: Path) -> list[str]:
        """Write a cell's settings next to its folder, and return the command of its single run."""
        start = [*shlex.split(self.launcher), "megabert"] if self.launcher else [sys.executable, "-m", "megabert"]
        path = folder.with_name(f"{folder.name}.yaml")
        atomic_write(path, to_yaml(self._config(cell)))
        task = cell.labelled.task.name
        return [*start, "finetune", task, "--config", str(path), "--output-dir", str(folder), "--device", self.device]

    def _tell_failure(self, cell: Cell, code: int, log: Path, begin: int) -> None:
        said = _last_message(log, begin) or "no message"
        logger.error("%s: failed with exit code %d, the others go on: %s (all of it: %s)", cell, code, said, log)
        if self.error is None:
            remedy = "The others have finished; the same command tries those that failed again."
            self.error = MegabertError(f"{cell}: exit {code}: {said}. {remedy}")
            self.error.exit_code = code if code > 0 else 1

    def _pass_on(self, labelled: LabelledSet, result: SetResult) -> None:
        """Let other sets start from the best model of this one, if they are to; without one they are left out."""
        if labelled.name != self.grid.start_from:
            return
        later = [one.name for one in self.grid.sets if one.task.intermediate == labelled.name]
        if result.summary is not None:
            self.models |= dict.fromkeys(later, result.summary.best_model)
        elif later:
            self.left_out.update(later)
            names = ", ".join(later)
            logger.error("%s: every cell failed, so %s cannot start from its model", labelled.name, names)


def _slots(processes: int, gpus: int, *, has_launcher: bool) -> list[Mapping[str, str]]:
    """Return the environment of the cells in each slot: a GPU of its own, or its share of the cores."""
    if has_launcher:
        return [dict(os.environ)]
    # Each cell is the rank of a world of one: ranks die with the process that started them, however it ends, and a
    # grid that is started again meets no orphans.
    shared = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    if processes > 1:
        shared.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // processes)))
    if not gpus:
        return [shared] * processes
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") or ",".join(map(str, range(gpus)))
    names = visible.split(",")[:gpus]
    return [shared | {"CUDA_VISIBLE_DEVICES": names[number % gpus]} for number in range(processes)]


def _last_message(log: Path, begin: int) -> str:
    """Return the last message of a command, whose part of the log begins at this byte; empty if there is none."""
    with open_to_read(log) as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("megabert")]
    return " ".join(lines[starts[-1] :] if starts else lines[-1:])[:_SHOWN]
