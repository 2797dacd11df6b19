"""A tag for each word of a sentence, such as named entities in BIO; the word's first piece carries it.

CoNLL calls the words tokens, and so do the names here that follow its columns.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megabert.downstream.finetuning.batches import Features
from megabert.downstream.finetuning.metrics import OUTSIDE, not_bio, score_tags
from megabert.downstream.finetuning.tables import as_text, read_table
from megabert.downstream.finetuning.task_kinds.base import Example, Head, Logits, Prediction, TaskKind
from megabert.downstream.finetuning.tasks import Task, refuse_columns
from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_write
from megabert.foundation.json_files import open_text
from megabert.observability.logs import logger

DOCUMENT = "-DOCSTART-"
"""First column of the lines between documents in CoNLL files."""
SPACES = re.compile(r"[ \t]+")
"""What separates CoNLL's columns. Other spaces, such as the one that does not break, may be part of a token."""
TABLES = (".jsonl", ".json", ".parquet")
"""Suffixes of tables with lists; any other file is read as CoNLL columns."""


@dataclass(frozen=True, kw_only=True)
class TaggedSentence(Example):
    """The tokens of a sentence and their tags."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


class Tagging(TaskKind[TaggedSentence]):
    """Tags the words of sentences; words beyond ``max_seq_length`` are predicted as O, and the log counts them."""

    head = Head("TokenClassification", "classifier", "labelled", "token-classification")

    @classmethod
    def read(cls, task: Task, path: Path) -> list[TaggedSentence]:
        """Read CoNLL columns (token first, tag last, a blank line after a sentence), or a table with lists."""
        return list(_read_lists(task, path) if path.suffix in TABLES else _read_columns(task, path))

    @classmethod
    def labels_of(cls, examples: Sequence[TaggedSentence]) -> tuple[str, ...]:
        """Return the tags, O first, then the others sorted."""
        tags = {tag for example in examples for tag in example.tags}
        if len(tags) < 2:
            raise DataError(
                f"{examples[0].where.rpartition(':')[0]}: every token has the tag {tags.pop()!r}. Training needs two "
                "tags or more; are the tags in the last column?"
            )
        others = sorted(not_bio(tags))
        if others:
            logger.warning(
                "%s: tags that are not BIO: %.200s. So there is no F1 of entities, and the accuracy of all tags picks "
                "the best weights. If they are entities, write them as B-TYPE and I-TYPE.",
                examples[0].where.rpartition(":")[0],
                ", ".join(others),
            )
        return tuple(sorted(tags, key=lambda tag: (tag != OUTSIDE, tag)))

    def encode(self, examples: Sequence[TaggedSentence], *, is_training: bool) -> Features:
        """Tokenize word by word, and label the first piece of each word."""
        sequences = self.sequences()
        words = [token for example in examples for token in example.tokens]
        pieces = iter(self.tokenizer.encode_words(words))
        unknown = np.array([self.tokenizer.special_ids.unk], np.int32)
        positions: list[NDArray[np.int64]] = []
        labels: list[int] = []
        for example in examples:
            # A word of control characters has no pieces, but needs one to carry its tag.
            encoded = [word if len(word) else unknown for _, word in zip(example.tokens, pieces, strict=False)]
            # Position of each word's first piece, after [CLS]; words past the last [SEP] lose their label.
            starts = 1 + np.cumsum([0, *map(len, encoded)])[:-1]
            kept = int(np.searchsorted(starts, self.max_seq_length - 1))
            tags = [self.id_of(tag, example.where) for tag in example.tags]
            sequences.add(np.concatenate(encoded))
            positions.append(starts[:kept])
            labels += tags[:kept]
        rows = np.array([len(part) for part in positions], np.int64)
        labelled = np.concatenate(positions)
        return Features(sequences.columns(), np.array(labels, np.int64), rows=rows, label_positions=labelled)

    def answers(self, logits: Logits, examples: Sequence[TaggedSentence], features: Features) -> Iterator[Prediction]:
        """Yield the likeliest tag of each word."""
        for example, rows in zip(examples, logits, strict=True):
            tags = [self.labels[index] for index in rows.argmax(-1)]
            yield {"prediction": tags + [OUTSIDE] * (len(example.tokens) - len(tags))}

    def score(self, predictions: Sequence[Prediction], examples: Sequence[TaggedSentence]) -> dict[str, float]:
        """Return precision, recall and F1 of entities, and the accuracy of tags."""
        predicted = [row["prediction"] for row in predictions]
        return score_tags([example.tags for example in examples], predicted, self.labels)

    def constant_answers(self, examples: Sequence[TaggedSentence]) -> Iterator[list[Prediction]]:
        """Yield the most frequent tag for every word, as a rule O."""
        frequent = Counter(tag for example in examples for tag in example.tags).most_common(1)[0][0]
        yield [{"prediction": [frequent] * len(example.tags)} for example in examples]

    def judge(self, prediction: Prediction, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return whether all tags of the sentence are correct."""
        return {"correct": prediction["prediction"] == list(prediction["tags"])}

    def write(self, predictions: Sequence[Prediction], metrics: Mapping[str, float], stem: Path) -> list[Path]:
        """Write JSON Lines, and CoNLL columns (token, right tag, predicted tag) as the official script reads them."""
        columns = stem.with_name(f"{stem.name}.conll")
        sentences = [
            "".join(
                f"{' '.join(map(_as_column, row))}\n"
                for row in zip(p["tokens"], p["tags"], p["prediction"], strict=True)
            )
            for p in predictions
        ]
        atomic_write(columns, "\n".join(sentences))
        return [*super().write(predictions, metrics, stem), columns]


def _as_column(value: str) -> str:
    """Return a token or a tag of a table as one of CoNLL's columns, which are not empty and have no white space."""
    return re.sub(r"\s+", "_", value, flags=re.ASCII) or "_"


def _read_columns(task: Task, path: Path) -> Iterator[TaggedSentence]:
    refuse_columns(task, path)
    sentence: list[tuple[str, str]] = []
    first, is_begin = 0, True
    with open_text(path) as file:
        # A blank line after the last one ends the last sentence, too.
        for number, line in enumerate(chain(file, [""]), 1):
            parts = SPACES.split(line.strip(" \t\n"))
            if parts[0] in ("", DOCUMENT):
                if sentence:
                    tokens, tags = zip(*sentence, strict=True)
                    is_begin = is_begin and _refuse_numbers(path, tokens)
                    yield TaggedSentence(where=f"{path}:{first}", line=first, tokens=tokens, tags=tags)
                sentence = []
                continue
            if len(parts) < 2:
                raise DataError(f"{path}:{number}: {parts[0]!r} has no tag. Give it a last column; O is no entity.")
            first = first if sentence else number
            sentence.append((parts[0], parts[-1]))


def _refuse_numbers(path: Path, tokens: Sequence[str]) -> bool:
    """Refuse a first sentence whose words are 1, 2, 3 ..., as in CoNLL-U and GermEval; else return False."""
    words = [token for token in tokens if token != "#"]  # comments
    if len(words) > 2 and words == [str(number) for number in range(1, len(words) + 1)]:
        raise DataError(
            f"{path}: its first column numbers the words (CoNLL-U and GermEval do), and it is read as the words. Write "
            "the columns of words and tags alone."
        )
    return False


def _read_lists(task: Task, path: Path) -> Iterator[TaggedSentence]:
    for row in read_table(path, [task.text, task.label]):
        tokens, tags = row.values[task.text], row.values[task.label]
        if not isinstance(tokens, list) or not isinstance(tags, list) or len(tokens) != len(tags):
            shown = [f"{len(value)} values" if isinstance(value, list) else repr(value) for value in (tokens, tags)]
            raise DataError(
                f"{row.where}: {task.text} and {task.label} must be lists of the same length (found "
                f"{shown[0]} and {shown[1]}). Fix the row, or name other columns."
            )
        if tokens:
            where = f"{row.where}: a value in column"
            yield TaggedSentence(
                **row.origin(),
                tokens=tuple(as_text(token, f"{where} {task.text!r}") for token in tokens),
                tags=tuple(as_text(tag, f"{where} {task.label!r}") for tag in tags),
            )
        else:
            logger.warning("%s: a sentence without tokens was left out", row.where)
