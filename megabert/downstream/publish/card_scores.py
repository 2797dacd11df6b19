"""Scores on a model card: read from the results of megabert's commands, written for model hubs.

A card has them in its ``model-index``. Sets that were published are in ``.eval_results/megabert.yaml`` as well, from
which the Hugging Face Hub fills the leaderboards of registered sets (https://huggingface.co/docs/hub/eval-results).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import FiniteFloat

from megabert.downstream.export.model_card import Score
from megabert.foundation.errors import DataError
from megabert.foundation.json_files import read_json

_AGAIN = "Give an output folder of megabert finetune, or a file of --json of pairs, pll or evaluate mlm."
_TABLE = """
cola      text-classification   nyu-mll/glue         cola           mcc
sst2      text-classification   nyu-mll/glue         sst2           accuracy
mrpc      text-classification   nyu-mll/glue         mrpc           accuracy
qqp       text-classification   nyu-mll/glue         qqp            accuracy
stsb      text-classification   nyu-mll/glue         stsb           pearson
mnli      text-classification   nyu-mll/glue         mnli           accuracy
qnli      text-classification   nyu-mll/glue         qnli           accuracy
rte       text-classification   nyu-mll/glue         rte            accuracy
wnli      text-classification   nyu-mll/glue         wnli           accuracy
ynat      text-classification   klue/klue            ynat           macro_f1
klue_sts  text-classification   klue/klue            sts            pearson
klue_nli  text-classification   klue/klue            nli            accuracy
klue_ner  token-classification  klue/klue            ner            entity_macro_f1
klue_re   text-classification   klue/klue            re             micro_f1
klue_mrc  question-answering    klue/klue            mrc            exact
snli      text-classification   stanfordnlp/snli     plain_text     accuracy
boolq     text-classification   google/boolq         default        accuracy
swag      multiple-choice       allenai/swag         regular        accuracy
squad     question-answering    rajpurkar/squad      plain_text     f1
squad2    question-answering    rajpurkar/squad_v2   squad_v2       f1
korquad   question-answering    KorQuAD/squad_kor_v1 squad_kor_v1   exact
tagging   token-classification
"""
PUBLISHED = {name: words for name, *words in map(str.split, _TABLE.strip().splitlines())}
"""Tasks of megabert on the Hub: kind of task, id of the data set, its configuration, and the metric that stands for it.

A leaderboard counts a score under a ``task_id`` of the data set's ``eval.yaml``. None of these sets is known to have
one, so the configuration is written there."""

Metrics = dict[str, FiniteFloat]


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """The model that was scored."""

    model: str
    checkpoint: str = "last"
    random_weights: bool = False


@dataclass(frozen=True, kw_only=True)
class _Tuning(_Origin):
    """The settings in ``grid.json`` and ``finetune.json`` that a card states."""

    epochs: float | None = None
    learning_rate: float | None = None
    start_from: str | None = None
    max_train_examples: int = 0
    max_eval_examples: int = 0


@dataclass(frozen=True)
class _TuningFile:
    settings: _Tuning


@dataclass(frozen=True)
class _Means:
    seeds: list[int]
    mean: dict[str, Metrics]


@dataclass(frozen=True, kw_only=True)
class _Setting:
    learning_rate: float
    epochs: float
    summary: _Means | None = None


@dataclass(frozen=True)
class _SetOfGrid:
    task: str
    settings: list[_Setting]
    choice: int | None = None
    test: _Means | None = None


@dataclass(frozen=True)
class _GridFile:
    sets: dict[str, _SetOfGrid]


@dataclass(frozen=True)
class _SingleFile(_Means):
    task: str


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
        kind = "grid.json" if (path / "grid.json").exists() else "finetune.json"
        origin = read_json(path / kind, _TuningFile, remedy=_AGAIN).settings
        scores = list(_of_grid(path, origin) if kind == "grid.json" else _of_single(path, origin))
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


def _of_grid(path: Path, tuning: _Tuning) -> Iterator[Score]:
    for name, one in read_json(path / "results.json", _GridFile, remedy=_AGAIN).sets.items():
        if one.choice is None:
            continue
        if not 0 <= one.choice < len(one.settings):
            place = f"{path / 'results.json'}: sets.{name}.choice={one.choice}"
            raise DataError(f"{place} is none of its {len(one.settings)} settings. {_AGAIN}")
        chosen = one.settings[one.choice]
        start = f"with --start-from {tuning.start_from}, " if tuning.start_from not in (None, name) else ""
        how = f"{start}the best of {len(one.settings)} settings"
        for means, where in ((chosen.summary, ""), (one.test, " on the evaluation set")):
            if means:
                yield from _of_task(one.task, name, means, tuning, chosen, how + where)


def _of_single(path: Path, tuning: _Tuning) -> Iterator[Score]:
    single = read_json(path / "results.json", _SingleFile, remedy=_AGAIN)
    setting = _Setting(learning_rate=tuning.learning_rate or 0.0, epochs=tuning.epochs or 0.0)
    yield from _of_task(single.task, single.task, single, tuning, setting, "")


def _of_task(task: str, name: str, means: _Means, tuning: _Tuning, setting: _Setting, how: str) -> Iterator[Score]:
    kind, *published = PUBLISHED.get(task, ["text-classification"])
    seeds = f"mean of {len(means.seeds)} seeds" if len(means.seeds) > 1 else "one seed"
    limits = {"trained on": tuning.max_train_examples, "scored on": tuning.max_eval_examples}
    parts = [f"{text} {count:,} examples" for text, count in limits.items() if count]
    note = ["fine-tuned", f"{setting.epochs:g} epochs", f"learning rate {setting.learning_rate:g}", how, seeds, *parts]
    for part, metrics in means.mean.items():
        # A leaderboard is of the whole published evaluation set, which has another name in further files.
        is_whole = part == next(iter(means.mean)) and part != "test" and not tuning.max_eval_examples
        yield Score(
            task=kind,
            name=f"{name} {part}",
            metrics=metrics,
            note=", ".join(filter(None, note)),
            published=(published[0], published[1], published[2]) if published and is_whole else None,
        )


def _of_json(file: _JsonFile) -> Iterator[Score]:
    text, masks = Path(file.data).name, f"masks {file.mask}"
    for one in file.sets:
        note = f"how often the good sentence of {one.pairs:,} pairs wins, {masks}"
        yield Score(
            task="fill-mask", name=f"minimal pairs {Path(one.name).stem}", metrics={"accuracy": one.accuracy}, note=note
        )
    if file.pseudo_perplexity is not None and file.bits_per_character is not None:
        metrics = {"pseudo_perplexity": file.pseudo_perplexity, "bits_per_character": file.bits_per_character}
        yield Score(task="fill-mask", name=f"sentences of {text}", metrics=metrics, note=f"pseudo-likelihood, {masks}")
    if file.loss is not None and file.accuracy is not None and file.unigram_loss is not None:
        metrics = {"mlm_loss": file.loss, "mlm_accuracy": file.accuracy, "unigram_loss": file.unigram_loss}
        yield Score(task="fill-mask", name=f"text of {text}", metrics=metrics, note="masked-LM loss in nats")


def render_eval_results(scores: tuple[Score, ...]) -> str | None:
    """Return the text of `EVAL_RESULTS`, scores in points; None if no score is of a published set."""
    entries = [
        {
            "dataset": {"id": score.published[0], "task_id": score.published[1]},
            "value": round(100 * score.metrics[score.published[2]], 2),
            "notes": f"{score.published[2]} in points on {score.name}, {score.note}, with megabert",
        }
        for score in scores
        if score.published and score.published[2] in score.metrics
    ]
    return yaml.safe_dump(entries, sort_keys=False, allow_unicode=True) if entries else None
