"""Fine-tuning on a device that is not there: a step and an evaluation in each of two epochs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from fake_cuda.fake_gpu import FAMILIES, SIZES, fake_engine, fake_gpu, ops_of
from fake_cuda.watch import Seen, Watch
from numpy.typing import NDArray

from megabert.downstream.finetuning.model import TaskModel
from megabert.downstream.finetuning.task_kinds import TASK_KINDS, Example
from megabert.downstream.finetuning.task_kinds.choice import ENDINGS, ChoiceQuestion
from megabert.downstream.finetuning.task_kinds.questions import SpanQuestion
from megabert.downstream.finetuning.task_kinds.sequence import LabelledText
from megabert.downstream.finetuning.task_kinds.tagging import TaggedSentence
from megabert.downstream.finetuning.tasks import find_task
from megabert.downstream.finetuning.trainer import EvaluationSet, TaskTrainer
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.model import ModelConfig
from megabert.tokens import tokenization

EXAMPLES, WORDS = 8, 92
LABELS = ("O", "B-X")
MICRO_STEPS = 2
"""Micro-steps of a step, and micro-batches of an evaluation, since each takes all examples."""


class Tokenizer:
    """Takes each word for one piece."""

    special_ids = SimpleNamespace(pad=0, cls=1, sep=2, unk=3)
    separators_in_pair = 1
    join = tokenization.Tokenizer.join

    def encode_batch(self, texts: list[str]) -> list[NDArray[np.int32]]:
        """Return one id for each word."""
        return [np.arange(5, 5 + len(text.split()), dtype=np.int32) for text in texts]

    encode_words = encode_batch

    def encode_with_offsets(self, texts: list[str]) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Return ids, and the characters of each word; words have one letter."""
        firsts = [np.arange(len(ids), dtype=np.int32) * 2 for ids in self.encode_batch(texts)]
        offsets = [np.stack([first, first + 1], 1) for first in firsts]
        return list(zip(self.encode_batch(texts), offsets, strict=True))


def finetuning(
    task_name: str, *, family: str = "bert", world_size: int = 1, stage: int = 1
) -> tuple[list[Seen], list[Seen]]:
    """Fine-tune for two epochs; return what was seen in each step and in each evaluation."""
    task, ops = find_task(task_name), ops_of(family)
    config = FinetuneConfig(
        model="none",
        data="none",
        epochs=2,
        learning_rate=3e-5,
        global_batch_size=EXAMPLES,
        micro_batch_tokens=WORDS * 5,
        ops=ops,
    )
    kind_of_task = TASK_KINDS[task.kind]
    labels = kind_of_task.fixed_labels or LABELS
    kind: Any = kind_of_task(task, config, Tokenizer(), labels=labels, max_seq_length=128)
    examples = [_example(task_name, number) for number in range(EXAMPLES)]
    features = kind.encode(examples, is_training=True)
    watch, seen = Watch(), {"step": [], "evaluation": []}

    def recorded(part: str, function: Any) -> Any:
        def call(*given: Any) -> Any:
            watch.seen = Seen()
            result = function(*given)
            seen[part].append(watch.seen)
            watch.seen = Seen()
            return result

        return call

    steps = mock.patch.object(TaskTrainer, "_step", recorded("step", TaskTrainer._step))
    evaluations = mock.patch.object(TaskTrainer, "evaluate", recorded("evaluation", TaskTrainer.evaluate))
    with fake_gpu(watch, world_size), steps, evaluations, watch:
        model = ModelConfig(family=family, **SIZES, **FAMILIES[family])
        engine, world = fake_engine(
            lambda: TaskModel(model, kind.head, kind.num_outputs, ops=ops),
            stage=stage,
            world_size=world_size,
            optimizer="adamw",
        )
        world.size = 1  # of the trainer: the other rank has no logits to give
        data = EvaluationSet("dev", examples, features)
        TaskTrainer(engine, kind, kind.batcher(features), [data], world).run(0, Path())
    return seen["step"], seen["evaluation"]


def _example(task_name: str, number: int) -> Example:
    text, origin = " ".join("w" * WORDS), {"where": "examples:1", "line": 1}
    if task_name == "squad":
        return SpanQuestion(**origin, identity=str(number), question="w w", context=text, answers=((4, "w w"),))
    if task_name == "tagging":
        return TaggedSentence(**origin, tokens=tuple(text.split()), tags=(LABELS[number % 2],) * WORDS)
    if task_name == "swag":  # a quarter of the words for each ending, [CLS] and two [SEP] among them
        context = " ".join("w" * (WORDS // 4 - 4))
        return ChoiceQuestion(**origin, context=context, start="w", endings=("w",) * len(ENDINGS), label=number % 4)
    return LabelledText(**origin, text=text, pair=None, label=LABELS[number % 2])
