"""A pre-training, its run folder, scores and exports, as functions."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.checkpoints.format import folder_name, read_checkpoint_manifest, steps_in
from megabert.distributed.environments import before_ranks_meet
from megabert.downstream.export.model_folder import find_model
from megabert.downstream.export.sources import open_source
from megabert.downstream.finetuning.saved_model import rescore
from megabert.downstream.inspection.masked_lm import score_masked_lm, scoring_options
from megabert.downstream.publish.forms import Forms
from megabert.downstream.publish.run_folder import export_run
from megabert.downstream.run_settings import initial_weights, resolve_run
from megabert.observability.logs import quiet
from megabert.observability.metrics import read_metrics
from megabert.settings.command_line.arguments import Device, checks_arguments
from megabert.settings.command_line.flags import nest
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import merge_layers, to_dict
from megabert.training.callbacks import Callbacks, OnCheckpoint, OnMetrics
from megabert.training.pretrain import pretrain as train
from megabert.training.recovery.stop_signals import CtrlC
from megabert.training.run.folder import CONFIG_NAME, checkpoints_dir, read_config
from megabert.training.state import TrainerState


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder, as it was when it was read."""

    folder: Path
    """The folder."""
    config: dict[str, Any]
    """The resolved configuration, as nested plain values."""
    checkpoints: tuple[int, ...]
    """Steps of the checkpoints, in order. `load_model` and `export` take each."""
    best: int | None
    """Step of the checkpoint with the lowest held-out loss of the last phase, if it was validated."""
    is_done: bool
    """Whether all steps are made."""

    def table(self) -> list[dict[str, Any]]:
        """Return the rows of ``metrics.jsonl``: of a logged step, or of a validation.

        ``pandas.DataFrame(run.table())`` makes a data frame of them.
        """
        return read_metrics(self.folder)

    @checks_arguments
    def metric(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the steps at which a metric was recorded, and its values there: two arrays of one length.

        Args:
            name: Such as ``train/loss`` or ``eval/mlm_loss``.
        """
        points = [(row["step"], row[name]) for row in self.table() if isinstance(row.get(name), int | float)]
        return np.array([step for step, _ in points], np.int64), np.array([value for _, value in points], np.float64)


class ModelScores(NamedTuple):
    """Scores of a model on a file."""

    task: str
    """Its name, ``mlm`` for guesses at masks."""
    examples: int
    """Number of examples; for ``mlm`` of sequences."""
    scores: dict[str, float]
    """Score by metric, fractions but for losses, which are in nats."""
    baseline: dict[str, float]
    """The same of the best constant answer; for ``mlm`` of word frequencies."""


@checks_arguments
def load_run(folder: str | Path) -> Run:
    """Read a run folder, of a run that has ended or goes on.

    Raises:
        CheckpointError: It is no run folder, or its newest checkpoint cannot be read.

    Example:
        >>> load_run("runs/first").checkpoints
        (0, 2, 3)
    """
    path, best, is_done = Path(folder), None, False
    config, steps = read_config(path), steps_in(checkpoints_dir(path))
    if steps:
        state = read_checkpoint_manifest(checkpoints_dir(path) / folder_name(steps[0])).trainer_state
        newest = TrainerState.from_dict(state)
        best, is_done = newest.best_step, newest.is_done(config)
    return Run(folder=path, config=to_dict(config), checkpoints=tuple(reversed(steps)), best=best, is_done=is_done)


@checks_arguments
def pretrain(
    recipe: str | Path | None = None,
    *,
    run_dir: str | Path,
    device: Device = "auto",
    progress: bool = False,
    on_step: OnMetrics | None = None,
    on_validation: OnMetrics | None = None,
    on_checkpoint: OnCheckpoint | None = None,
    **settings: Any,
) -> Run:
    """Pre-train, or continue the run that a folder holds: `megabert pretrain`.

    Under torchrun, srun or the ``deepspeed`` launcher every rank makes the same calls, and gets the same result.

    Args:
        recipe: Name or file of a recipe, ``debug`` by default.
        run_dir: Folder of the run, new or to be continued.
        device: Where it runs; ``auto`` takes a GPU if there is one.
        progress: Whether to print the messages of the command.
        on_step: Called on rank 0 with step and row of metrics, at each logged step (``logging.every_steps``).
        on_validation: Called on rank 0 with step and scores of each validation.
        on_checkpoint: Called on rank 0 with step and folder of each checkpoint, once it is on the disk.
        settings: Fields of `megabert pretrain --print-config`: a section as a mapping, ``data={"path": "data/mine"}``,
            or a field by its dotted path, ``**{"phases.0.steps": 100}``.

    Raises:
        ConfigError: A setting is wrong; the message names it and the nearest known one.
        DataError: Shards are missing, damaged or unfit.
        CheckpointError: The folder holds another experiment, or a checkpoint cannot be used.
        MegabertError: One of the functions failed; the run is saved, and the same call continues it.
        KeyboardInterrupt: Ctrl-C; the run is saved once it has made a step, if this is the main thread.

    Example:
        >>> steps = {"phases.0.steps": 2, "phases.1.steps": 1}
        >>> run = pretrain("debug", run_dir="runs/first", data={"path": "data"}, **steps)
        >>> run.is_done
        True
    """
    path = Path(run_dir)
    callbacks = Callbacks(on_step=on_step, on_validation=on_validation, on_checkpoint=on_checkpoint)
    with quiet(unless=progress), CtrlC() as stop:
        with before_ranks_meet():
            config = resolve_run(path, None if recipe is None else str(recipe), nest(settings))
            initial = initial_weights(config, path)
        if not train(config, path, initial=initial, device=device, stop=stop, callbacks=callbacks):
            raise KeyboardInterrupt(f"{path} is saved; the same call continues it")
    gc.collect()  # the engine is in reference cycles: its memory is free from here on, also on a GPU
    return load_run(path)


@checks_arguments
def resume(run_dir: str | Path, **arguments: Any) -> Run:
    """Continue a run with the settings that it has recorded.

    Args:
        run_dir: Folder of the run.
        arguments: Keyword arguments of `pretrain`, such as ``device`` or ``on_step``; its errors are raised here, too.

    Raises:
        CheckpointError: It is no run folder.
    """
    read_config(Path(run_dir))
    return pretrain(Path(run_dir) / CONFIG_NAME, run_dir=run_dir, **arguments)


@checks_arguments
def evaluate(
    model: str | Path,
    *,
    data: str | Path,
    task: str | None = None,
    checkpoint: str = "last",
    device: Device = "auto",
    **settings: Any,
) -> ModelScores:
    """Score a fine-tuned model on a labelled file, or the guesses of any model at masks: `megabert evaluate`.

    Args:
        model: Folder of a fine-tuned model; for ``mlm`` as in `load_model`.
        data: A labelled file or a folder with ``dev.*``; for ``mlm`` a text file or a folder of shards.
        task: ``mlm``, or the task of a folder that does not say it.
        checkpoint: For ``mlm``: the checkpoint of a run folder.
        device: Where it runs; ``auto`` takes a GPU if there is one.
        settings: Fields of `megabert evaluate --help-all` on which scoring depends, such as ``text_column="body"``.

    Raises:
        ConfigError: The task, the model or a setting is wrong.
        DataError: The data cannot be read, or a label is not among the model's.
        CheckpointError: The weights are missing, damaged or without the head.
    """
    with quiet():
        if task != "mlm":
            found = rescore(find_model(str(model)), Path(data), task_name=task, changes=settings, device=device)
            return ModelScores(found.task, found.examples, found.metrics, found.baseline)
        source = open_source(str(model), checkpoint)
        fields = merge_layers(FinetuneConfig, {**settings, "model": str(model), "data": str(data)})
        score = score_masked_lm(source, Path(data), scoring_options(source, fields), device=device).total
    scores = {"loss": score.loss, "accuracy": score.accuracy, "perplexity": score.perplexity}
    return ModelScores("mlm", score.sequences, scores, {"loss": score.unigram_loss, "accuracy": score.unigram_accuracy})


@checks_arguments
def export(
    run_dir: str | Path,
    *,
    output_dir: str | Path,
    checkpoint: str = "last",
    weights: Literal["trained", "average"] | None = None,
    languages: Sequence[str] = (),
    license: str | None = None,
    vectors: Literal["mean", "cls", "colbert"] | None = None,
    onnx: bool = False,
) -> Path:
    """Write a checkpoint of a run as a folder that transformers loads: `megabert export`.

    Args:
        run_dir: The run folder.
        output_dir: A new folder, or an earlier export.
        checkpoint: ``last``, ``best`` or a step.
        weights: As they were trained, or their moving average; None chooses as the command does.
        languages: ISO 639 codes of the text's languages, for the card.
        license: Licence of the model, for the card.
        vectors: Adds the files by which sentence-transformers loads the folder.
        onnx: Adds ``onnx/model.onnx``.

    Returns:
        The folder.

    Raises:
        ConfigError, CheckpointError, DataError: There is no such run or checkpoint, or the folder holds something else.
    """
    facts, forms = {"languages": tuple(languages), "license": license}, Forms(vectors=vectors, has_onnx=onnx)
    with quiet():
        run, folder = find_model(str(run_dir)), Path(output_dir)
        export_run(run, folder, checkpoint=checkpoint, weights=weights, facts=facts, forms=forms)
    return folder
