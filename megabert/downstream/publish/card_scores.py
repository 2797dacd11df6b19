"""Scores for a model card, read from the results of megabert's commands.

A card has them in its ``model-index``. Sets that were published are in ``.eval_results/megabert.yaml`` as well, from
which the Hugging Face Hub fills the leaderboards of registered sets (https://huggingface.co/docs/hub/eval-results).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat

from megabert.downstream.export.model_card import Score
from megabert.downstream.finetuning.grid.cells import Setting
from megabert.downstream.finetuning.grid.grid_results import is_grid, read_grid
from megabert.downstream.finetuning.seed_results import GRID_NAME, SETTINGS_NAME, Summary, read_summary
from megabert.downstream.finetuning.tasks import find_task
from megabert.foundation.errors import DataError
from megabert.foundation.json_files import parse_values, read_json

_AGAIN = "Give an output folder of megabert finetune, or a file of --json of pairs, pll or evaluate mlm."


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """The model that was scored."""

    model: str
    checkpoint: str = "last"
    random_weights: bool = False


@dataclass(frozen=True, kw_only=True)
class _Tuning(_Origin):
    """The settings in ``grid.json`` and ``finetune.json`` that a card states."""

    epochs: float = 0.0
    learning_rate: float = 0.0
    start_from: str | None = None
    max_train_examples: int = 0
    max_eval_examples: int = 0


@dataclass(frozen=True)
class _PairSet:
    name: str
    pairs: int
    accuracy: FiniteFloat


@dataclass(frozen=True, kw_only=True)
class _JsonFile(_Origin):
    """The fields of the three commands that write ``--json``."""

    data: str = ""
    mask: str = ""
    sets: list[_PairSet] = field(default_factory=list)
    pseudo_perplexity: FiniteFloat | None = None
    bits_per_character: FiniteFloat | None = None
    loss: FiniteFloat | None = None
    accuracy: FiniteFloat | None = None
    unigram_loss: FiniteFloat | None = None


def read_scores(path: Path, *, export: Path, run: Path | None, checkpoint: str) -> list[Score]:
    """Read the scores of a model.

    Args:
        path: Output folder of a fine-tuning or of a grid, or a file that ``--json`` of another command wrote.
        export: The exported folder; scores of it are taken.
        run: The run; scores of its ``checkpoint`` are taken as well. None if the export has other weights of it than
            the commands score.
        checkpoint: ``last``, ``best`` or a step.

    Raises:
        DataError: The file is no such file, or has scores of another model.
    """
    origin: _Origin
    if path.is_dir():
        file = path / (GRID_NAME if is_grid(path) else SETTINGS_NAME)
        settings = read_json(file, dict[str, Any], remedy=_AGAIN).get("settings")
        origin = parse_values(settings, _Tuning, where=f"{file}: settings", remedy=_AGAIN)
        scores = list(_of_folder(path, origin))
    else:
        origin = read_json(path, _JsonFile, remedy=_AGAIN)
        scores = list(_of_json(origin))
    if not scores:
        raise DataError(f"{path}: has no scores. {_AGAIN}")
    if "\0" in origin.model:
        raise DataError(f"{path}: model={origin.model!r} is no path. {_AGAIN}")
    whose = Path(origin.model).resolve()
    is_of_run = run is not None and whose == run.resolve() and origin.checkpoint == checkpoint
    if origin.random_weights or not (is_of_run or whose == export.resolve()):
        what = "random weights" if origin.random_weights else f"{origin.model} ({origin.checkpoint})"
        ours = f"{export} or of {run} ({checkpoint})" if run else f"{export}, which has other weights of the run"
        raise DataError(f"{path}: has scores of {what}, not of {ours}. Score the export: --model {export}")
    return scores


def refuse_repeated(scores: list[Score]) -> None:
    """Refuse two scores with one name and the same metrics, of which the card's table would show the last one.

    Raises:
        DataError: There are such scores.
    """
    counts = Counter((score.name, *score.metrics) for score in scores)
    repeated = [name for (name, *_), count in counts.items() if count > 1]
    if repeated:
        raise DataError(f"--scores: {repeated[0]} is in two of the paths. Give one of them, or rename the data.")


def _of_folder(path: Path, tuning: _Tuning) -> Iterator[Score]:
    if not is_grid(path):
        summary = read_summary(path)
        yield from _of_summary(summary.task, summary, tuning, Setting(tuning.learning_rate, tuning.epochs), "")
        return
    for name, one in read_grid(path).sets.items():
        start = f"with --start-from {tuning.start_from}, " if tuning.start_from not in (None, name) else ""
        how = f"{start}the best of {len(one.settings)} settings"
        for own, where in ((one.summary, ""), (one.test, " on the evaluation set")):
            if own and one.chosen:
                setting = Setting(one.chosen.learning_rate, one.chosen.epochs)
                yield from _of_summary(name, own, tuning, setting, how + where)


def _of_summary(name: str, summary: Summary, tuning: _Tuning, setting: Setting, how: str) -> Iterator[Score]:
    from megabert.downstream.finetuning.task_kinds import kind_of_task  # scikit-learn, which few exports need

    task = find_task(summary.task)
    seeds = f"mean of {len(summary.seeds)} seeds" if len(summary.seeds) > 1 else "one seed"
    limits = {"trained on": tuning.max_train_examples, "scored on": tuning.max_eval_examples}
    parts = [f"{text} {count:,} examples" for text, count in limits.items() if count]
    note = ["fine-tuned", f"{setting.epochs:g} epochs", f"learning rate {setting.learning_rate:g}", how, seeds, *parts]
    for part, metrics in summary.mean.items():
        # A leaderboard is of the whole published evaluation set, which has another name in further files.
        is_whole = part == next(iter(summary.mean)) and part != "test" and not tuning.max_eval_examples
        yield Score(
            task=kind_of_task(task).head.pipeline,
            name=f"{name} {part}",
            metrics=metrics,
            note=", ".join(filter(None, note)),
            published=task.published if is_whole else None,
        )


def _of_json(file: _JsonFile) -> Iterator[Score]:
    text, masks = Path(file.data).name, f"masks {file.mask}"
    for one in file.sets:
        note = f"how often the good sentence of {one.pairs:,} pairs wins, {masks}"
        name = f"minimal pairs {Path(one.name).stem}"
        yield Score(task="fill-mask", name=name, metrics={"accuracy": one.accuracy}, note=note)
    likelihood = {"pseudo_perplexity": file.pseudo_perplexity, "bits_per_character": file.bits_per_character}
    losses = {"mlm_loss": file.loss, "mlm_accuracy": file.accuracy, "unigram_loss": file.unigram_loss}
    for name, metrics, note in (
        (f"sentences of {text}", likelihood, f"pseudo-likelihood, {masks}"),
        (f"text of {text}", losses, "masked-LM loss in nats"),
    ):
        stated = {metric: value for metric, value in metrics.items() if value is not None}
        if len(stated) == len(metrics):
            yield Score(task="fill-mask", name=name, metrics=stated, note=note)
