"""Before a grid starts: is every set sound, and how long will its cells take? A few steps of each are measured."""

import math
import time
from pathlib import Path
from typing import NamedTuple

import torch

from megabert.distributed.process_group import World
from megabert.downstream.finetuning.finetune import build_task_model, build_trainer, engine_settings
from megabert.downstream.finetuning.grid.cells import LabelledSet, Setting
from megabert.downstream.finetuning.setup import find_file, find_labelled_files, prepare
from megabert.downstream.finetuning.task_kinds import TaskKind
from megabert.foundation.errors import ConfigError, DataError
from megabert.observability.logs import logger
from megabert.settings.config.finetune import FinetuneConfig

FORWARD_SHARE = 1 / 3
"""Scoring an example takes this share of the time of training on it: a backward pass costs two forward passes."""


class Survey(NamedTuple):
    """The content of a set's files, and the measured cost of a run on it."""

    config: FinetuneConfig
    """The settings with the numbers that the model gives for ``auto``."""
    rate: str
    """The learning rate, and its reason."""
    identity: dict[str, str]
    """SHA-256 of the tokenizer and of every data file."""
    train_items: int
    evaluation_items: int
    """Items of the first set, which is scored again and again."""
    other_items: int
    """Items of the further sets, which are scored at the end."""
    read_s: float
    """Seconds to read and encode the set."""
    build_s: float
    """Seconds to build model and engine; imports of a process are part of it."""
    step_s: float
    """Seconds per step; NaN if there was no GPU to measure them on."""
    model_bytes: int
    """Size of the model that a cell writes."""
    test: Path | None
    """The set's test file, if it has one with labels."""

    @property
    def start_s(self) -> float:
        """From the start of the command to the first step."""
        return self.read_s + self.build_s

    def seconds(self, setting: Setting, config: FinetuneConfig) -> float:
        """Return the time that one cell takes."""
        per_epoch = -(-self.train_items // config.global_batch_size)
        steps = max(1, math.ceil(setting.epochs * per_epoch))
        evaluations = -(-steps // (config.evaluate_every_steps or per_epoch))
        scored = evaluations * self.evaluation_items + self.other_items
        return self.start_s + self.step_s * (steps + FORWARD_SHARE * scored / config.global_batch_size)


def survey(labelled: LabelledSet, config: FinetuneConfig, world: World | None) -> Survey:
    """Read and check a set, and make a few steps on it; nothing is written.

    Args:
        labelled: The set.
        config: The settings of one of its cells.
        world: A world of one rank; None makes no steps, for a GPU that this machine lacks.

    Raises:
        ConfigError, DataError, CheckpointError: The set or the model is not sound.
    """
    began = time.perf_counter()
    prepared = prepare(labelled.task, config)
    read = time.perf_counter()
    if world is None:
        engine_settings(config, torch.device("cuda"))
        trainer, weights = None, {**build_task_model(prepared)[0].state_dict()}
    else:
        trainer, weights, *_ = build_trainer(prepared, world)
    built = time.perf_counter()
    first, *others = (len(data.features) for data in prepared.evaluation)
    return Survey(
        config=prepared.kind.config,
        rate=prepared.rate,
        identity=prepared.identity,
        train_items=len(prepared.train),
        evaluation_items=first,
        other_items=sum(others),
        read_s=read - began,
        build_s=built - read,
        step_s=trainer.measure_step(config.seed) if trainer else math.nan,
        model_bytes=4 * sum(weight.numel() for weight in weights.values()),
        test=find_test_file(labelled, config, prepared.kind),
    )


def find_test_file(labelled: LabelledSet, config: FinetuneConfig, kind: TaskKind) -> Path | None:
    """Return the test file in a set's folder, unless it takes part in the choice; GLUE and KLUE publish no labels.

    Many published test files have no labels. One that cannot be scored is left out with a warning before the first
    cell runs: an error after the last one would cost the results of all.

    Args:
        labelled: The set.
        config: The settings of one of its cells.
        kind: The task, bound to the labels of the training file.
    """
    if labelled.task.suite or not labelled.data.is_dir():
        return None
    try:
        path = find_file(labelled.data, labelled.task.test)
    except DataError:
        return None
    if any(path.samefile(evaluation) for evaluation in find_labelled_files(labelled.task, config)[1]):
        return None
    try:
        kind.encode(kind.read(labelled.task, path), is_training=False)
    except (ConfigError, DataError) as error:
        logger.warning("%s: this test set will not be scored: %s", labelled.name, error)
        return None
    return path
