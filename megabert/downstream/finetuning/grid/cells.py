"""A grid of fine-tunings as data: labelled sets, rates, epochs and seeds, and the single run that each cell is."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from megabert.downstream.finetuning.seed_results import seed_folder
from megabert.downstream.finetuning.tasks import SUITES, Task, find_task
from megabert.foundation.errors import ConfigError, DataError
from megabert.observability.logs import logger
from megabert.settings.config.finetune import FinetuneConfig, LearningRate


class LabelledSet(NamedTuple):
    """A task and the place of its files."""

    name: str
    """The set's folder in the grid's, and its row in tables."""
    task: Task
    data: Path


class Setting(NamedTuple):
    """The values that a grid tries on a set."""

    learning_rate: LearningRate
    """A number once the model has been read."""
    epochs: float


def cell_name(learning_rate: LearningRate, epochs: float, seed: int) -> str:
    """Return the name of a cell's folder, below the set's."""
    return f"rate_{learning_rate:.15g}-epochs_{epochs:.15g}-seed_{seed}"


class Cell(NamedTuple):
    """One single run: a set, a setting and a seed."""

    labelled: LabelledSet
    setting: Setting
    seed: int

    @property
    def name(self) -> str:
        """The cell's folder, below the set's."""
        return cell_name(*self.setting, self.seed)

    def folder(self, output_dir: Path) -> Path:
        """Return the output folder of the cell's single run in a grid's."""
        return output_dir / self.labelled.name / self.name

    def seed_folder(self, output_dir: Path) -> Path:
        """Return the folder of the cell's result and model."""
        return seed_folder(self.folder(output_dir), self.seed)

    def __str__(self) -> str:
        """Return the cell as messages name it."""
        rate, epochs = self.setting
        return f"{self.labelled.name}, rate {rate:g}, epochs {epochs:g}, seed {self.seed}"


class Grid(NamedTuple):
    """Sets, settings and seeds, and the settings that all cells share."""

    config: FinetuneConfig
    """The settings that all cells share; its rate, epochs, seed and data are replaced cell by cell."""
    sets: tuple[LabelledSet, ...]
    settings: tuple[Setting, ...]
    start_from: str | None = None
    """The set whose best model other sets start from, as their tasks say (``Task.intermediate``)."""

    @property
    def seeds(self) -> list[int]:
        """The seeds of every setting."""
        return list(range(self.config.seed, self.config.seed + self.config.seeds))

    def cells_of(self, labelled: LabelledSet) -> list[Cell]:
        """Return the cells of a set."""
        return [Cell(labelled, setting, seed) for setting in self.settings for seed in self.seeds]

    def config_of(self, cell: Cell, model: str) -> FinetuneConfig:
        """Return the settings of a cell's single run.

        Args:
            cell: The cell.
            model: The weights that it starts from.
        """
        own = cell.setting._asdict() | {"seed": cell.seed, "seeds": 1, "data": str(cell.labelled.data), "model": model}
        return replace(self.config, **own)

    def waves(self) -> Iterator[list[LabelledSet]]:
        """Yield the sets that can run at once: first all that start from the model itself."""
        later = [one for one in self.sets if self.start_from and one.task.intermediate == self.start_from]
        yield [one for one in self.sets if one not in later]
        if later:
            yield later


def check_tasks(names: Sequence[str]) -> None:
    """Refuse an unknown task.

    Raises:
        ConfigError: A name is neither a task nor a collection.
    """
    for name in names:
        task_name = name.partition("=")[0]
        if task_name not in SUITES or "=" in name:
            find_task(task_name)


def find_sets(names: Sequence[str], config: FinetuneConfig, *, has_files: bool = True) -> tuple[LabelledSet, ...]:
    """Return the labelled sets that a command line names.

    Args:
        names: Tasks, collections of tasks (glue, klue), or TASK=PATH for a set of one's own, named by its path.
        config: Settings; ``data`` is the folder in which the sets are, or the data of the only task.
        has_files: Whether the files are there: a collection then has the tasks of the folder, else all of its tasks.

    Raises:
        ConfigError: A task is unknown, or two sets have one name.
        DataError: The folder has no task of a collection.
    """
    root = Path(config.data)
    sets: list[LabelledSet] = []
    for name in names:
        task_name, equals, path = name.partition("=")
        if task_name in SUITES and not equals:
            sets += _suite(task_name, root, has_files=has_files)
            continue
        task = find_task(task_name, config)
        stem = Path(path).name.partition(".")[0] if equals else task.name
        if not stem:
            raise ConfigError(f"{name}: names no folder or file. Write TASK=PATH, below --data.")
        usual = root if len(names) == 1 else root / (task.folder or task.name)
        sets.append(LabelledSet(stem, task, root / path if equals else usual))
    for one in sets:
        if [other.name for other in sets].count(one.name) > 1:
            raise ConfigError(f"{one.name}: two sets have this name. Name each once, or give one file another name.")
    return tuple(sets)


def _suite(suite: str, root: Path, *, has_files: bool) -> list[LabelledSet]:
    """Return the sets of a collection that a folder has, or all if the folder need not be there."""
    sets = [LabelledSet(task.name, task, root / (task.folder or task.name)) for task in SUITES[suite]]
    present = [one for one in sets if one.data.is_dir() or not has_files]
    missing = ", ".join(one.data.name for one in sets if one not in present)
    if not present:
        raise DataError(f"{root}: no task of {suite.upper()} there; looked for the folders {missing}.")
    if missing:
        logger.warning("not in %s, left out: %s", root, missing)
    return present
