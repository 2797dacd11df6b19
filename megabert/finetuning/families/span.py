"""An answer that stands in a text: SQuAD 1.1 and 2.0, and KorQuAD, in windows over long contexts (Devlin et al. 2019).

A sequence is ``[CLS] question [SEP] window [SEP]``. Where the window does not hold the answer, or there is none, start
and end are [CLS].
"""

# T packed tokens, B sequences, S tokens of a padded sequence

import json
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.errors import DataError
from megabert.finetuning.batches import TaskBatch
from megabert.finetuning.families.base import Example, Family, Head
from megabert.finetuning.features import Features
from megabert.finetuning.metrics.answers import Gold, best_null_threshold, score_answers
from megabert.finetuning.tables import as_text, json_object, read_table
from megabert.finetuning.tasks import Task, refuse_columns
from megabert.ops.cross_entropy import cross_entropy
from megabert.schema.files import atomic_write

MAY_BE_UNANSWERABLE = ("squad2",)
"""Tasks in which a question may have no answer."""

_Scores = tuple[float, float, float]
"""Sum of the logits, start's, end's."""


@dataclass(frozen=True, kw_only=True)
class Question(Example):
    """A question, its context, and where its answers begin there."""

    identity: str
    question: str
    context: str
    answers: tuple[tuple[int, str], ...]


@dataclass(frozen=True, kw_only=True)
class Window:
    """A stretch of a context's tokens in a sequence."""

    question: int
    """Place of the question among the examples."""
    shift: int
    """Position in the sequence minus index among the context's tokens."""
    offsets: NDArray[np.int32]
    """Characters of the context that each token of the window covers, of shape (tokens, 2)."""
    is_best: NDArray[np.bool_]
    """Whether a token has no more context in another window; only such ones begin an answer."""
    first: int
    """Index among the context's tokens of the window's first."""


@dataclass(frozen=True, kw_only=True)
class WindowFeatures(Features):
    """Items are windows."""

    windows: tuple[Window, ...]


class Span(Family[Question]):
    """The likeliest pair of start and end."""

    head = Head("QuestionAnswering", "qa_outputs", "tokens", "question-answering")

    @property
    def may_be_unanswerable(self) -> bool:
        """Whether "no answer" is an answer."""
        return self.task.name in MAY_BE_UNANSWERABLE

    @classmethod
    def read(cls, task: Task, path: Path) -> list[Question]:
        """Read SQuAD's JSON, or JSON Lines or Parquet with the columns id, question, context, answers."""
        rows = _read_squad(task, path) if path.suffix == ".json" else _read_rows(task, path)
        examples = [_checked(example, task) for example in rows]
        if not examples:
            raise DataError(f"{path}: holds no examples. Name a file with questions.")
        identities = set()
        for example in examples:
            if example.identity in identities:
                raise DataError(f"{example.where}: id {example.identity!r} is used twice. Give each question its own.")
            identities.add(example.identity)
        return examples

    @classmethod
    def labels_of(cls, examples: Sequence[Question]) -> tuple[str, ...]:
        """Return the names of the two outputs."""
        return ("start", "end")

    @property
    def num_outputs(self) -> int:
        """Start and end."""
        return 2

    def encode(self, examples: Sequence[Question], *, is_training: bool) -> WindowFeatures:
        """Cut contexts into windows."""
        sequences = self.sequences()
        windows: list[Window] = []
        spans: list[tuple[int, int]] = []
        questions = self.tokenizer.encode_batch([example.question for example in examples])
        contexts = list(dict.fromkeys(example.context for example in examples))
        encoded = dict(zip(contexts, self.tokenizer.encode_with_offsets(contexts), strict=True))
        for index, (example, question) in enumerate(zip(examples, questions, strict=True)):
            question = question[: min(self.config.max_query_length, self.max_seq_length // 2)]
            ids, offsets = encoded[example.context]
            answer = _token_span(offsets, example) if is_training else None
            for first, stop, is_best in self._windows(len(ids), len(question)):
                shift = len(question) + 1 + self.tokenizer.separators_in_pair - first
                inside = answer is not None and first <= answer[0] and answer[1] < stop
                spans.append((answer[0] + shift, answer[1] + shift) if inside and answer is not None else (0, 0))
                sequences.add(question, ids[first:stop])
                windows.append(
                    Window(question=index, shift=shift, offsets=offsets[first:stop], is_best=is_best, first=first)
                )
        columns = sequences.columns()
        ones = np.ones(len(windows), np.int64)
        return WindowFeatures(
            columns=columns,
            labels=np.array(spans, np.int64),
            rows=columns.lengths,
            weights=ones,
            windows=tuple(windows),
        )

    def _windows(self, tokens: int, question: int) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
        """Yield first and past-the-last token of each window, and where it is the best one of its tokens."""
        room = self.max_seq_length - question - 2 - self.tokenizer.separators_in_pair
        starts = [0]
        while starts[-1] + room < tokens:
            starts.append(starts[-1] + min(room, self.config.doc_stride))
        stops = [min(start + room, tokens) for start in starts]
        # A token's context in a window: the smaller side, and a hundredth of the window's length against ties.
        place = np.arange(tokens)
        context = np.stack(
            [
                np.where(
                    (place >= start) & (place < stop),
                    np.minimum(place - start, stop - 1 - place) + 0.01 * (stop - start),
                    -np.inf,
                )
                for start, stop in zip(starts, stops, strict=True)
            ]
        )
        best = context.argmax(0) if tokens else place
        for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            yield start, stop, best[start:stop] == number

    def loss(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """Return the mean of the cross entropies of start and end, summed over windows."""
        inputs = batch.inputs
        starts_B, ends_B = inputs.cu_seqlens[:-1].long(), inputs.cu_seqlens[1:].long()
        place_BS = starts_B[:, None] + torch.arange(inputs.max_seqlen, device=logits.device)
        is_outside_BS = place_BS >= ends_B[:, None]
        padded = logits.float()[place_BS.clamp(max=len(logits) - 1)]
        losses = [
            cross_entropy(
                padded[..., side].masked_fill(is_outside_BS, -torch.inf).contiguous(),
                batch.labels[:, side].contiguous(),
                backend=self.config.ops.cross_entropy,
            )[0]
            for side in (0, 1)
        ]
        return (losses[0] + losses[1]) / 2

    def predict(
        self, logits: Sequence[NDArray], examples: Sequence[Question], features: Features
    ) -> list[dict[str, Any]]:
        """Return for each question its best answers, and how much likelier "no answer" is than the best."""
        assert isinstance(features, WindowFeatures)
        found: list[dict[str, _Scores]] = [{} for _ in examples]
        null = [(np.inf, 0.0, 0.0)] * len(examples)
        for rows, window in zip(logits, features.windows, strict=True):
            null[window.question] = min(null[window.question], (float(rows[0].sum()), *rows[0].tolist()))
            best = found[window.question]
            for text, scores in self._answers(rows, window, examples[window.question].context):
                if text not in best or scores[0] > best[text][0]:
                    best[text] = scores
        return [
            self._prediction(example, answers, score)
            for example, answers, score in zip(examples, found, null, strict=True)
        ]

    def _answers(self, rows: NDArray, window: Window, context: str) -> Iterator[tuple[str, _Scores]]:
        """Yield the best answers of a window: text, and the logits' sum, start's and end's."""
        start_logits, end_logits = np.asarray(rows, np.float64).T
        first = window.first + window.shift
        stop = first + len(window.offsets)

        def top(values: NDArray) -> NDArray[np.int64]:
            chosen = np.argsort(-values, kind="stable")[: self.config.n_best]
            return chosen[(chosen >= first) & (chosen < stop)] - first

        starts, ends = top(start_logits), top(end_logits)
        starts = starts[window.is_best[starts]]
        length = ends[None, :] - starts[:, None] + 1
        scores = start_logits[starts + first][:, None] + end_logits[ends + first][None, :]
        scores = np.where((length >= 1) & (length <= self.config.max_answer_length), scores, -np.inf)
        for place in np.argsort(-scores.ravel(), kind="stable")[: self.config.n_best]:
            row, column = divmod(int(place), max(1, len(ends)))
            if scores[row, column] == -np.inf:
                return
            s, e = int(starts[row]), int(ends[column])
            stop_at = _past_marks(context, int(window.offsets[e, 1]))
            text = context[window.offsets[s, 0] : stop_at].strip()  # SentencePiece counts the space
            yield text, (float(scores[row, column]), float(start_logits[s + first]), float(end_logits[e + first]))

    def _prediction(self, example: Question, answers: dict[str, _Scores], null: _Scores) -> dict[str, Any]:
        ranked = sorted(answers.items(), key=_by_score)[: self.config.n_best] or [("", null)]
        listed = ranked
        if self.may_be_unanswerable and answers:  # beside the n best, as in google-research/bert
            listed = sorted([*ranked, ("", null)], key=_by_score)
        scores = np.array([score[0] for _, score in listed])
        weights = np.exp(scores - scores.max())
        return {
            "id": example.identity,
            "answer": ranked[0][0],
            "null_odds": null[0] - ranked[0][1][0],
            "n_best": [
                {"text": text, "probability": float(w), "start_logit": start, "end_logit": end}
                for (text, (_, start, end)), w in zip(listed, weights / weights.sum(), strict=True)
            ],
        }

    def score(self, predictions: Sequence[dict[str, Any]], examples: Sequence[Question]) -> dict[str, float]:
        """Return exact match and F1, and where there may be no answer the threshold that decides it."""
        gold = [Gold(example.identity, tuple(text for _, text in example.answers)) for example in examples]
        language = self.config.language
        answers = {row["id"]: row["answer"] for row in predictions}
        if not self.may_be_unanswerable:
            return score_answers(answers, gold, language)
        threshold = self.config.null_threshold
        if threshold == "auto":
            threshold = best_null_threshold(answers, {r["id"]: r["null_odds"] for r in predictions}, gold, language)
        chosen = _with_threshold(predictions, threshold)
        return score_answers(chosen, gold, language, allows_none=True) | {"null_threshold": threshold}

    def write(self, predictions: Sequence[dict[str, Any]], metrics: dict[str, float], stem: Path) -> list[Path]:
        """Write the three files that the official scripts take: answers, n best answers, odds of no answer."""
        contents: dict[str, Any] = {
            ".json": _with_threshold(predictions, metrics.get("null_threshold", np.inf)),
            "_nbest.json": {row["id"]: row["n_best"] for row in predictions},
        }
        if self.may_be_unanswerable:
            contents["_null_odds.json"] = {row["id"]: row["null_odds"] for row in predictions}
        paths = []
        for suffix, content in contents.items():
            paths.append(stem.with_name(f"{stem.name}{suffix}"))
            atomic_write(paths[-1], json.dumps(content, ensure_ascii=False, indent=1) + "\n")
        return paths


def _by_score(answer: tuple[str, _Scores]) -> float:
    return -answer[1][0]


def _past_marks(context: str, end: int) -> int:
    """Return where an answer ends, with the accents behind its last letter that an uncased tokenizer drops."""
    while end < len(context) and unicodedata.combining(context[end]):
        end += 1
    return end


def _with_threshold(predictions: Sequence[dict[str, Any]], threshold: float) -> dict[str, str]:
    return {row["id"]: "" if row["null_odds"] > threshold else row["answer"] for row in predictions}


def _token_span(offsets: NDArray[np.int32], example: Question) -> tuple[int, int] | None:
    """Return the first and the last token that touch the first answer."""
    if not example.answers:
        return None
    start, text = example.answers[0]
    touching = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < start + len(text)))
    return (int(touching[0]), int(touching[-1])) if touching.size else None


def _checked(example: Question, task: Task) -> Question:
    for start, text in example.answers:
        found = example.context[start : start + len(text)] if start >= 0 else ""
        if found != text or not text:
            raise DataError(
                f"{example.where}: question {example.identity!r}: the answer {text!r} does not stand at character "
                f"{start} of its context; {found!r} does. Mend answer_start, which counts characters, not bytes."
            )
    if not example.answers and task.name not in MAY_BE_UNANSWERABLE:
        raise DataError(
            f"{example.where}: question {example.identity!r} has no answer. Leave it out, or use the task "
            f"{MAY_BE_UNANSWERABLE[0]}."
        )
    return example


def _read_squad(task: Task, path: Path) -> Iterator[Question]:
    refuse_columns(task, path)
    try:
        content = json_object(path.read_text(encoding="utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 (byte {error.object[error.start]:#04x}). Convert the file.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Name another file.") from None
    where = str(path)
    try:
        for i, article in enumerate(content["data"]):
            for j, paragraph in enumerate(article["paragraphs"]):
                for k, row in enumerate(paragraph["qas"]):
                    where = f"{path}: data[{i}].paragraphs[{j}].qas[{k}]"
                    answers = [] if row.get("is_impossible") else row["answers"]
                    yield Question(
                        where=where,
                        identity=str(row["id"]),
                        question=as_text(row["question"], f"{where}: question"),
                        context=as_text(paragraph["context"], f"{where}: context"),
                        answers=tuple(
                            (int(answer["answer_start"]), as_text(answer["text"], f"{where}: answer"))
                            for answer in answers
                        ),
                    )
    except (KeyError, TypeError, ValueError) as error:
        name = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{where}: is not in SQuAD's form: {name}. Expected data[].paragraphs[].qas[].") from None


def _read_rows(task: Task, path: Path) -> Iterator[Question]:
    assert task.pair is not None
    table = read_table(path, ["id", task.text, task.pair, task.label])
    for index in range(len(table)):
        answers = table.columns[task.label][index]
        try:
            pairs = tuple(zip(map(int, answers["answer_start"]), map(str, answers["text"]), strict=True))
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{table.where(index)}: {task.label} must be an object of two lists of one length, text and "
                f"answer_start (found {answers!r:.80})."
            ) from None
        yield Question(
            where=table.where(index),
            identity=table.text("id", index),
            question=table.text(task.text, index),
            context=table.text(task.pair, index),
            answers=pairs,
        )
