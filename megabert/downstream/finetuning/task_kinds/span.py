"""The answer to a question is a span of its context: SQuAD 1.1 and 2.0, and KorQuAD (Devlin et al. 2019, section 4.2).

A context longer than a sequence is cut into overlapping windows. A sequence is ``[CLS] question [SEP] window [SEP]``,
and the head gives each token two logits, for being the first and the last of the answer. If the window does not hold
the answer, or there is none, both are [CLS].
"""

# T packed tokens, B sequences (windows), S tokens of a padded sequence

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.downstream.finetuning import metrics as scorers
from megabert.downstream.finetuning.batches import Features, TaskBatch
from megabert.downstream.finetuning.seed_results import THRESHOLD
from megabert.downstream.finetuning.task_kinds.base import Head, Logits, Prediction, TaskKind
from megabert.downstream.finetuning.task_kinds.questions import SpanQuestion, read_questions
from megabert.downstream.finetuning.tasks import Task
from megabert.foundation.errors import ConfigError
from megabert.foundation.json_files import write_json
from megabert.ops.cross_entropy.api import cross_entropy
from megabert.tokens.tokenization.composition import past_marks

_Scores = tuple[float, float, float]
"""Sum of the two logits of an answer, then the logit of its start and the one of its end."""


class ContextWindow(NamedTuple):
    """Consecutive tokens of a context, as they are in one sequence."""

    question: int
    """Index of the question among the examples."""
    start: int
    """Position of the window's first token in the sequence."""
    offsets: NDArray[np.int32]
    """First and past-the-last character of the context for each token of the window, of shape (tokens, 2)."""
    is_best: NDArray[np.bool_]
    """Whether no other window gives a token more context; only such a token can begin an answer."""


class Span(TaskKind[SpanQuestion]):
    """Finds the likeliest pair of start and end."""

    head = Head("QuestionAnswering", "qa_outputs", "tokens", "question-answering")
    outputs = 2  # the logits of being the first and the last token
    fixed_labels = ("start", "end")

    @classmethod
    def read(cls, task: Task, path: Path) -> list[SpanQuestion]:
        """Read SQuAD's JSON, or JSON Lines or Parquet with the columns id, question, context, answers."""
        return read_questions(task, path)

    def encode(self, examples: Sequence[SpanQuestion], *, is_training: bool) -> Features:
        """Cut contexts into windows, the items.

        Raises:
            ConfigError: ``max_seq_length`` has no token left for the context.
        """
        if self._room(0) < 1:
            least = self.max_seq_length + 1 - self._room(0)
            raise ConfigError(
                f"max_seq_length={self.max_seq_length}: no token is left for a context. Take {least} or more."
            )
        sequences = self.sequences()
        windows: list[ContextWindow] = []
        spans: list[tuple[int, int]] = []
        questions = self.tokenizer.encode_batch([example.question for example in examples])
        contexts = list(dict.fromkeys(example.context for example in examples))
        encoded = dict(zip(contexts, self.tokenizer.encode_with_offsets(contexts), strict=True))
        for index, (example, question) in enumerate(zip(examples, questions, strict=True)):
            question = question[: min(self.config.max_query_length, self.max_seq_length // 2, self._room(0) - 1)]
            ids, offsets = encoded[example.context]
            answer = _token_span(offsets, example) if is_training else None
            start = len(question) + 1 + self.tokenizer.separators_in_pair  # of every window, in its sequence
            for first, stop, is_best in self._windows(len(ids), len(question)):
                if answer is not None and first <= answer[0] and answer[1] < stop:
                    spans.append((answer[0] - first + start, answer[1] - first + start))
                else:
                    spans.append((0, 0))  # [CLS]
                sequences.add(question, ids[first:stop])
                windows.append(ContextWindow(question=index, start=start, offsets=offsets[first:stop], is_best=is_best))
        columns = sequences.columns()
        rows = columns.lengths.astype(np.int64)
        return Features(columns, np.array(spans, np.int64), rows=rows, origins=windows)

    def _room(self, question: int) -> int:
        """Return how many tokens of the context a window has beside so many of the question."""
        return self.max_seq_length - question - 2 - self.tokenizer.separators_in_pair

    def _windows(self, tokens: int, question: int) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
        """Yield first and past-the-last token of each window, and for which tokens it is the best window.

        Args:
            tokens: Tokens of the context.
            question: Tokens of the question.
        """
        room = self._room(question)
        starts = [0]
        while starts[-1] + room < tokens:
            starts.append(starts[-1] + min(room, self.config.doc_stride))
        stops = [min(start + room, tokens) for start in starts]
        # A token is scored in the window that gives it the most context, as in google-research/bert: what counts is the
        # smaller number of tokens on either side, and a hundredth of the window's length decides between equals. Each
        # window is compared with the best one so far: a table of all tokens in all windows would be their product.
        best, most = np.zeros(tokens, np.int64), np.full(tokens, -np.inf)
        for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            index = np.arange(start, stop)
            context = np.minimum(index - start, stop - 1 - index) + 0.01 * (stop - start)
            is_better = context > most[start:stop]
            best[start:stop][is_better], most[start:stop][is_better] = number, context[is_better]
        for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            yield start, stop, best[start:stop] == number

    def loss(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """Return the mean of the cross entropies of start and end, summed over windows."""
        # One softmax over the tokens of each sequence: the packed logits become a padded batch, with padding at minus
        # infinity, so that it takes no probability.
        inputs = batch.inputs
        starts_B, ends_B = inputs.cu_seqlens[:-1].long(), inputs.cu_seqlens[1:].long()
        token_BS = starts_B[:, None] + torch.arange(inputs.max_seqlen, device=logits.device)
        is_outside_BS = token_BS >= ends_B[:, None]
        padded_BS2 = logits.float()[token_BS.clamp(max=len(logits) - 1)].masked_fill(
            is_outside_BS[..., None], -torch.inf
        )
        losses = [
            cross_entropy(side_BS.contiguous(), labels.contiguous(), backend=self.config.ops.cross_entropy)[0]
            for side_BS, labels in zip(padded_BS2.unbind(-1), batch.labels.unbind(-1), strict=True)
        ]
        return (losses[0] + losses[1]) / 2

    def answers(self, logits: Logits, examples: Sequence[SpanQuestion], features: Features) -> Iterator[Prediction]:
        """Yield for each question its best answers, and how much likelier "no answer" is than the best."""
        # The best score of each answer's text over all windows, and the lowest score of "no answer", as in
        # google-research/bert: a question has no answer only if every window says so.
        found: list[dict[str, _Scores]] = [{} for _ in examples]
        null = [(np.inf, 0.0, 0.0)] * len(examples)
        for rows, window in zip(logits, features.origins, strict=True):
            null[window.question] = min(null[window.question], (float(rows[0].sum()), *rows[0].tolist()))
            best = found[window.question]
            for text, scores in self._answers_in(rows, window, examples[window.question].context):
                if text not in best or scores[0] > best[text][0]:
                    best[text] = scores
        for answers, none in zip(found, null, strict=True):
            yield self._best_of(answers, none)

    def _answers_in(self, rows: NDArray, window: ContextWindow, context: str) -> Iterator[tuple[str, _Scores]]:
        """Yield the best answers of a window, each as its text and its scores."""
        start_logits, end_logits = np.asarray(rows, np.float64).T
        first, stop = window.start, window.start + len(window.offsets)

        def top(values: NDArray) -> NDArray[np.int64]:
            chosen = np.argsort(-values, kind="stable")[: self.config.n_best]
            return chosen[(chosen >= first) & (chosen < stop)] - first

        # The n best starts and the n best ends, then all pairs of them that make an answer of allowed length.
        starts, ends = top(start_logits), top(end_logits)
        starts = starts[window.is_best[starts]]
        length = ends[None, :] - starts[:, None] + 1
        scores = start_logits[starts + first][:, None] + end_logits[ends + first][None, :]
        scores = np.where((length >= 1) & (length <= self.config.max_answer_length), scores, -np.inf)
        for pair in np.argsort(-scores.ravel(), kind="stable")[: self.config.n_best]:
            row, column = divmod(int(pair), max(1, len(ends)))
            if scores[row, column] == -np.inf:
                return
            s, e = int(starts[row]), int(ends[column])
            stop_at = past_marks(context, int(window.offsets[e, 1]))
            text = context[window.offsets[s, 0] : stop_at].strip()  # a SentencePiece token covers the space before it
            yield text, (float(scores[row, column]), float(start_logits[s + first]), float(end_logits[e + first]))

    def _best_of(self, answers: dict[str, _Scores], null: _Scores) -> Prediction:
        """Return the best answer, the n best ones with their probabilities, and the odds of no answer."""
        ranked = sorted(answers.items(), key=_by_score)[: self.config.n_best] or [("", null)]
        listed = ranked
        if self.task.may_be_unanswerable and answers:  # in addition to the n best, as in google-research/bert
            listed = sorted([*ranked, ("", null)], key=_by_score)
        scores = np.array([score[0] for _, score in listed])
        weights = np.exp(scores - scores.max())
        return {
            "answer": ranked[0][0],
            "null_odds": null[0] - ranked[0][1][0],
            "n_best": [
                {"text": text, "probability": float(w), "start_logit": start, "end_logit": end}
                for (text, (_, start, end)), w in zip(listed, weights / weights.sum(), strict=True)
            ],
        }

    def score(self, predictions: Sequence[Prediction], examples: Sequence[SpanQuestion]) -> dict[str, float]:
        """Return exact match and F1, and the threshold of "no answer" if a question may have none."""
        gold = {example.identity: [text for _, text in example.answers] for example in examples}
        answers = {row["id"]: row["answer"] for row in predictions}
        if not self.task.may_be_unanswerable:
            return self._compare(answers, gold)
        threshold = self.config.null_threshold
        if threshold == "auto" and self.task.answers == "klue":
            threshold = 0.0  # KLUE-baseline's: the threshold is not chosen by the evaluation set
        elif threshold == "auto":
            odds = {row["id"]: row["null_odds"] for row in predictions}
            threshold = scorers.best_null_threshold(answers, odds, gold, self._language)
        return self._compare(_with_threshold(predictions, threshold), gold) | {THRESHOLD: threshold}

    @property
    def _language(self) -> scorers.Language:
        return "ko" if self.task.answers == "korquad" else self.config.language

    def _compare(self, answers: Mapping[str, str], gold: scorers.Gold) -> dict[str, float]:
        """Return exact match and overlap by the rules of the task."""
        if self.task.answers == "klue":
            return scorers.score_klue_answers(answers, gold)
        return scorers.score_answers(answers, gold, self._language, allows_none=self.task.may_be_unanswerable)

    def constant_answers(self, examples: Sequence[SpanQuestion]) -> Iterator[list[Prediction]]:
        """Yield no answer, or the whole context if every question has one."""
        has_none = self.task.may_be_unanswerable
        yield [{"id": e.identity, "answer": "" if has_none else e.context, "null_odds": 0.0} for e in examples]

    def judge(self, prediction: Prediction, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return the answer after the threshold in place of the n best ones, and its scores."""
        (answer,) = _with_threshold([prediction], metrics.get(THRESHOLD, np.inf)).values()
        scores = self._compare({prediction["id"]: answer}, {prediction["id"]: prediction["answers"]})
        overlap: dict[str, float] = {name: scores[name] for name in ("f1", "rouge_w") if name in scores}
        n_best = [{"text": row["text"], "probability": round(row["probability"], 6)} for row in prediction["n_best"]]
        return {"n_best": n_best[:3], "prediction": answer, **overlap, "correct": scores["exact"] == 1}

    def write(self, predictions: Sequence[Prediction], metrics: Mapping[str, float], stem: Path) -> list[Path]:
        """Write JSON Lines, and the official scripts' files: answers, n best answers, odds of no answer."""
        contents: dict[str, Any] = {
            ".json": _with_threshold(predictions, metrics.get(THRESHOLD, np.inf)),
            "_nbest.json": {row["id"]: row["n_best"] for row in predictions},
        }
        if self.task.may_be_unanswerable:
            contents["_null_odds.json"] = {row["id"]: row["null_odds"] for row in predictions}
        paths = []
        for suffix, content in contents.items():
            paths.append(stem.with_name(f"{stem.name}{suffix}"))
            write_json(paths[-1], content, ensure_ascii=False, indent=1)
        return [*super().write(predictions, metrics, stem), *paths]


def _by_score(answer: tuple[str, _Scores]) -> float:
    return -answer[1][0]


def _with_threshold(predictions: Sequence[Prediction], threshold: float) -> dict[str, str]:
    """Return the answer to each question, or "" if its odds of no answer are above the threshold."""
    return {row["id"]: "" if row["null_odds"] > threshold else row["answer"] for row in predictions}


def _token_span(offsets: NDArray[np.int32], example: SpanQuestion) -> tuple[int, int] | None:
    """Return the first and the last token that overlap the first answer."""
    if not example.answers:
        return None
    start, text = example.answers[0]
    overlapping = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < start + len(text)))
    return (int(overlapping[0]), int(overlapping[-1])) if overlapping.size else None
