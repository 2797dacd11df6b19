"""A tag for each character of a sentence: KLUE's named entities (Park et al. 2021, section 3.4).

A piece learns the tag of its first character. Its other characters get that tag's I-, as in KLUE-baseline.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from megabert.downstream.finetuning.batches import Features
from megabert.downstream.finetuning.metrics import OUTSIDE, entity_macro_f1, tag_macro_f1, tags_of_characters
from megabert.downstream.finetuning.task_kinds.base import Logits, Prediction
from megabert.downstream.finetuning.task_kinds.tagging import TaggedSentence, Tagging
from megabert.downstream.finetuning.tasks import Task, refuse_columns
from megabert.foundation.errors import DataError
from megabert.foundation.json_files import open_text
from megabert.tokens.tokenization.composition import past_marks

COMMENT = "##"
"""Beginning of the lines that name the file's columns and each sentence."""


class CharacterTagging(Tagging):
    """Tags the characters of sentences; characters beyond ``max_seq_length`` are predicted as O."""

    @classmethod
    def read(cls, task: Task, path: Path) -> list[TaggedSentence]:
        """Read KLUE's TSV: character and tag, a blank line after a sentence, lines of ## before it."""
        refuse_columns(task, path)
        return list(_read(path))

    def encode(self, examples: Sequence[TaggedSentence], *, is_training: bool) -> Features:
        """Tokenize sentences, and label each piece by its first character that is no space."""
        sequences = self.sequences()
        encoded = self.tokenizer.encode_with_offsets(["".join(example.tokens) for example in examples])
        positions, labels, kept_offsets = [], [], []
        for example, (ids, offsets) in zip(examples, encoded, strict=True):
            sequences.add(ids)
            kept = offsets[: self.max_seq_length - 2]
            kept_offsets.append(kept)
            positions.append(np.arange(1, 1 + len(kept), dtype=np.int64))
            labels += [self.id_of(_tag_of(example, start, end), example.where) for start, end in kept.tolist()]
        return Features(
            sequences.columns(),
            np.array(labels, np.int64),
            rows=np.array([len(part) for part in positions], np.int64),
            label_positions=np.concatenate(positions),
            origins=kept_offsets,
        )

    def answers(self, logits: Logits, examples: Sequence[TaggedSentence], features: Features) -> Iterator[Prediction]:
        """Yield a tag for each character."""
        for example, rows, offsets in zip(examples, logits, features.origins, strict=True):
            tags, text = [OUTSIDE] * len(example.tokens), "".join(example.tokens)
            for index, (start, end) in zip(rows.argmax(-1) if len(rows) else (), offsets.tolist(), strict=True):
                start, end = _first_visible(example, start, end), past_marks(text, end)
                tags[start:end] = tags_of_characters(self.labels[index], end - start)
            yield {"prediction": tags}

    def score(self, predictions: Sequence[Prediction], examples: Sequence[TaggedSentence]) -> dict[str, float]:
        """Return the macro F1 of entities and of characters; spaces do not count."""
        gold, predicted = [], []
        for example, row in zip(examples, predictions, strict=True):
            visible = [index for index, character in enumerate(example.tokens) if not character.isspace()]
            gold.append([example.tags[index] for index in visible])
            predicted.append([row["prediction"][index] for index in visible])
        return {
            "entity_macro_f1": entity_macro_f1(gold, predicted),
            "char_macro_f1": tag_macro_f1(gold, predicted, self.labels),
        }


def _first_visible(example: TaggedSentence, start: int, end: int) -> int:
    """Return a piece's first character that is no space; a SentencePiece covers the space before it."""
    return next((index for index in range(start, end) if not example.tokens[index].isspace()), start)


def _tag_of(example: TaggedSentence, start: int, end: int) -> str:
    return example.tags[_first_visible(example, start, end)] if start < end else OUTSIDE


def _read(path: Path) -> Iterator[TaggedSentence]:
    sentence: list[tuple[str, str]] = []
    first, identity = 0, None
    with open_text(path, newline="") as file:
        for number, line in enumerate([*file.read().split("\n"), ""], 1):
            line = line.rstrip("\r")
            if line.startswith(COMMENT) and "\t" in line and not sentence:
                identity = line.removeprefix(COMMENT).split("\t")[0].strip()
            elif line in ("", "\t"):
                if sentence:
                    characters, tags = zip(*sentence, strict=True)
                    where = f"{path}:{first}"
                    yield TaggedSentence(where=where, line=first, identity=identity, tokens=characters, tags=tags)
                sentence, identity = [], None
            elif not line.startswith(COMMENT) or "\t" in line:
                character, tab, tag = line.partition("\t")
                if not tab or not tag or len(character) != 1:
                    wanted = "a character, a tab and its tag"
                    raise DataError(f"{path}:{number}: {line!r:.80} is not {wanted}. Fix the line.")
                first = first if sentence else number
                sentence.append((character, tag))
