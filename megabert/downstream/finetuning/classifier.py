"""A fine-tuned classifier on texts that nobody has labelled."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from megabert.downstream.finetuning.saved_model import SavedModel, recorded_settings
from megabert.downstream.finetuning.task_kinds.sequence import LabelledText
from megabert.downstream.finetuning.tasks import find_task
from megabert.downstream.finetuning.trainer import EvaluationSet, compute_logits
from megabert.foundation.errors import ConfigError
from megabert.settings.command_line.arguments import checks_arguments


class Judgement(NamedTuple):
    """The answer of a classifier for one text."""

    label: str
    """The likeliest label."""
    probabilities: dict[str, float]
    """The probability of each label, from 0 to 1."""


class Classifier:
    """A fine-tuned model that gives a text, or a pair of texts, one of several labels."""

    labels: tuple[str, ...]
    """The labels, in the order of the head's outputs."""

    def __init__(self, saved: SavedModel, *, device: torch.device | str = "cpu") -> None:
        """Build the model.

        Raises:
            ConfigError: The model was fine-tuned for a task of another kind, or its labels have no names.
            CheckpointError: The folder has no such head.
        """
        config = recorded_settings(saved)
        task = find_task(saved.task_name or "classification", config, package=saved.package)
        if task.kind != "sequence" or task.entities:
            raise ConfigError(
                f"{saved.folder}: was fine-tuned for the task {saved.task_name}, which gives no label to a plain text. "
                "Its predictions on a labelled file: megabert evaluate --predictions."
            )
        if saved.labels is None:
            raise ConfigError(
                f"{saved.folder}: config.json does not name the labels of its head. Add id2label, or fine-tune a model "
                "with: megabert finetune classification."
            )
        self.labels, self._folder = saved.labels, saved.folder
        # The folder of another program does not say what its texts were.
        self._takes_pairs = None if saved.task_name is None else task.pair is not None
        self._kind = saved.bind_kind(task, config, saved.labels)
        self._device = torch.device(device)
        self._model = saved.build_model(task, self._kind.num_outputs).to(self._device)

    @checks_arguments
    @torch.no_grad()
    def predict(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> list[Judgement]:
        """Return a judgement for each text.

        Texts are cut to the length that the model was fine-tuned with, or in a folder of another program to the length
        that its tokenizer states, or the model's positions.

        Args:
            texts: The texts.
            seconds: The second text of each pair, for a model that was fine-tuned on pairs.

        Raises:
            ConfigError: The model was fine-tuned on pairs and there are no second texts, or the other way round; there
                are more texts than second texts, or fewer; or one text was given in place of a list.
        """
        if self._takes_pairs not in (None, seconds is not None):
            read, remedy = ("pairs", "Give") if self._takes_pairs else ("single texts", "Leave out")
            raise ConfigError(f"{self._folder}: was fine-tuned on {read}. {remedy} the second texts.")
        if seconds is not None and len(seconds) != len(texts):
            raise ConfigError(f"{len(texts)} texts and {len(seconds)} second texts: give one of each for a pair.")
        if not texts:
            return []
        pairs = [None] * len(texts) if seconds is None else seconds
        # The encoding asks for labels, and predictions do not depend on them.
        examples = [
            LabelledText(where=f"text {number}", line=number, text=text, pair=second, label=self.labels[0])
            for number, (text, second) in enumerate(zip(texts, pairs, strict=True), 1)
        ]
        data = EvaluationSet("texts", examples, self._kind.encode(examples, is_training=False))
        logits = compute_logits(self._model, self._kind, data, device=self._device)
        answers = self._kind.answers(logits, examples, data.features)
        return [Judgement(answer["prediction"], answer["probabilities"]) for answer in answers]
