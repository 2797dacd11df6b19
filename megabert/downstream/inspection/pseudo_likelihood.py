"""Pseudo-log-likelihoods of sentences by a masked language model, and the pseudo-perplexity of a text.

The score of a sentence is the sum of the log-probabilities of its pieces, each guessed from all others (Salazar et al.
2020); `training.probes.masked_copies` says how the pieces are masked. It ranks sentences, but is no probability: scores
of all sentences do not add up to one. Of a minimal pair the good sentence should have the higher score (`score_pairs`).
"""

# S sentences, P pieces of all sentences, C copies of a batch, M masked positions

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from megabert.downstream.export.sources import Source
from megabert.downstream.inspection.encode_text import check_outputs, read_texts
from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_path
from megabert.foundation.text_tables import render_table
from megabert.models.bert import PretrainingModel
from megabert.models.electra import ElectraForPreTraining
from megabert.tokens.tokenization import Tokenizer
from megabert.training.probes.masked_copies import copy_batches, encode_sentences
from megabert.training.probes.minimal_pairs import GroupBy, GroupScore, Pair, score_groups, sentences_of

_GROUP_TEXTS, _GROUP_CHARACTERS = 1024, 1 << 17
"""Texts that are tokenized, and whose copies are packed, at once."""


class Scores(NamedTuple):
    """Scores of some texts, in their order."""

    scores_S: NDArray[np.float64]
    """Pseudo-log-likelihoods in nats; 0 for a text of no pieces."""
    counts_S: NDArray[np.int64]
    """Pieces of each text."""


class SentenceScorer:
    """A model that scores texts."""

    def __init__(
        self, source: Source, *, device: torch.device | str = "cpu", is_random: bool = False, **copies: Any
    ) -> None:
        """Load the model, or draw its weights at random as a baseline.

        Args:
            source: The model.
            device: Where it runs.
            is_random: Whether its weights are random.
            copies: ``mask`` and ``batch_tokens``, as for `copy_batches`.

        Raises:
            CheckpointError: The weights have no masked-LM head. An ELECTRA is scored by its generator.
        """
        self.tokenizer: Tokenizer = source.load_tokenizer()
        model = source.build_untrained_model() if is_random else source.build_model(fills_masks=True)
        self.model: PretrainingModel = model.generator if isinstance(model, ElectraForPreTraining) else model
        self.model.to(device).eval()
        self.longest = source.model.max_position_embeddings if is_random else source.longest
        """Most tokens that the model sees at once."""
        self._copies = copies

    def score(self, texts: Sequence[str]) -> Scores:
        """Score texts.

        Raises:
            CheckpointError: The model's outputs are not finite.
        """
        return score_texts(self.model, self.tokenizer, texts, longest=self.longest, **self._copies)


@torch.inference_mode()
def score_texts(
    model: PretrainingModel, tokenizer: Tokenizer, texts: Sequence[str], *, longest: int, **copies: Any
) -> Scores:
    """Score texts with a model on any device, in evaluation mode; an ELECTRA gives its generator.

    The model sees ``longest`` tokens at once; the masks of the copies and the size of a batch are as in `copy_batches`.

    Raises:
        CheckpointError: The model's outputs are not finite.
    """
    sentences = encode_sentences(tokenizer, texts)
    scores_P = np.zeros(len(sentences.ids_P))
    for pieces_C, batch in copy_batches(sentences, tokenizer.special_ids, longest=longest, **copies):
        moved = batch.to(next(model.parameters()).device)
        logits_MV = check_outputs(model(moved, with_logits=True).mlm_logits_MV.float())
        losses_M = functional.cross_entropy(logits_MV, moved.masked_ids_M, reduction="none")
        scores_P[pieces_C] = -losses_M.double().cpu().numpy()
    # Differences of the running sum would lose digits: each sentence is summed by itself.
    sums = [scores_P[start:stop].sum() for start, stop in zip(sentences.starts, sentences.starts[1:], strict=False)]
    return Scores(np.array(sums), sentences.counts_S)


@dataclass
class TextScore:
    """Sums over the sentences of a text."""

    sentences: int = 0
    pieces: int = 0
    characters: int = 0
    score: float = 0.0
    """Pseudo-log-likelihood in nats."""
    windowed: int = 0
    """Sentences that are longer than the model reads at once."""
    first_windowed: int = 0
    """Line of the first of these; 0 if there is none."""

    @property
    def perplexity(self) -> float:
        """Pseudo-perplexity: e to the mean of the negative scores of all pieces (Salazar et al. 2020, section 2.3)."""
        return math.exp(min(-self.score / self.pieces, 700.0))  # e to the 710 is no number

    @property
    def bits_per_character(self) -> float:
        """The negative score in bits per character of the text, which other vocabularies' scores compare with."""
        return -self.score / math.log(2) / self.characters

    def to_dict(self) -> dict[str, Any]:
        """Return the sums and means as JSON holds them."""
        means = {"pseudo_perplexity": self.perplexity, "bits_per_character": self.bits_per_character}
        return {**vars(self), **means}


def score_file(scorer: SentenceScorer, path: Path, *, column: str = "text", output: Path | None = None) -> TextScore:
    """Score each line of a text file.

    Args:
        scorer: The model.
        path: A text file with a sentence per line, or JSON Lines by its suffix.
        column: The field of a JSON object that holds the sentence.
        output: JSON Lines to write: ``line``, ``text``, ``score``, ``pieces``, and ``windowed``, a boolean.

    Raises:
        DataError: The file cannot be read or has no text.
    """
    total = TextScore()
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in _score_lines(scorer, path, column, total))
    if output is None:
        deque(lines, maxlen=0)
    else:
        with atomic_path(output) as temporary, open(temporary, "xb") as stream:
            stream.writelines(line.encode() for line in lines)
    return total


def _score_lines(scorer: SentenceScorer, path: Path, column: str, total: TextScore) -> Iterator[dict[str, Any]]:
    """Yield each line's row, and add it to the total."""
    for group in _groups(read_texts(path, column)):
        numbers, texts = zip(*group, strict=True)
        scores = scorer.score(texts)
        for number, text, score, count in zip(numbers, texts, *map(np.ndarray.tolist, scores), strict=True):
            is_windowed = count + 2 > scorer.longest
            total.sentences += 1
            total.pieces += count
            total.characters += len(text)
            total.score += score
            total.windowed += is_windowed
            total.first_windowed = total.first_windowed or number * is_windowed
            yield {"line": number, "text": text, "score": score, "pieces": count, "windowed": is_windowed}
    if not total.pieces:
        raise DataError(f"{path}: has no text. Give a file with a sentence per line.")


def _groups(rows: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    group: list[tuple[int, str]] = []
    characters = 0
    for row in rows:
        group.append(row)
        characters += len(row[1])
        if len(group) == _GROUP_TEXTS or characters >= _GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def render_text_score(total: TextScore) -> str:
    """Return the sums and means of a text as a table."""
    rows = (
        ("sentences", f"{total.sentences:,}"),
        ("pieces", f"{total.pieces:,}"),
        ("pseudo-log-likelihood per sentence (nats)", f"{total.score / total.sentences:.3f}"),
        ("pseudo-perplexity", f"{total.perplexity:,.2f}"),
        ("bits per character", f"{total.bits_per_character:.3f}"),
    )
    return render_table(rows, align="lr")


_AT_ONCE = 512
"""Pairs whose sentences are packed together."""


class PairScores(NamedTuple):
    """The scores of a file or set."""

    name: str
    pairs: list[Pair]
    scores: Scores
    """Scores of `sentences_of` the pairs."""
    windowed: int
    """Sentences that are longer than the model's positions."""

    def groups(self, by: GroupBy) -> list[GroupScore]:
        """Return the groups' scores, and all pairs' as the last."""
        return score_groups(self.pairs, self.scores.scores_S, by)

    @property
    def pieces_apart(self) -> float:
        """Mean of the pieces of the bad sentence minus the pieces of the good one."""
        good_N, bad_N = np.split(self.scores.counts_S, 2)
        return float((bad_N - good_N).mean())

    def to_dict(self) -> dict[str, Any]:
        """Return the accuracies by each kind of group as JSON holds them."""
        groups = {by: [row.to_dict() for row in self.groups(by)[:-1]] for by in get_args(GroupBy)}
        total = self.groups("UID")[-1].to_dict()
        return {"name": self.name, **total, "pieces_apart": self.pieces_apart, "windowed": self.windowed, **groups}


def score_pairs(scorer: SentenceScorer, sets: Mapping[str, list[Pair]]) -> list[PairScores]:
    """Score minimal pairs.

    Args:
        scorer: The model.
        sets: Pairs by the name of their file or set.
    """
    results = []
    for name, pairs in sets.items():
        texts = sentences_of(pairs)
        parts = [scorer.score(texts[start : start + 2 * _AT_ONCE]) for start in range(0, len(texts), 2 * _AT_ONCE)]
        scores = Scores(*map(np.concatenate, zip(*parts, strict=True)))
        windowed = int((scores.counts_S + 2 > scorer.longest).sum())
        results.append(PairScores(name=name, pairs=pairs, scores=scores, windowed=windowed))
    return results


def render_pairs(result: PairScores, by: GroupBy) -> str:
    """Return a table with a row for each group, and one for all."""
    rows = [
        (
            row.group,
            f"{row.pairs:,}",
            f"{100 * row.accuracy:.1f}",
            " to ".join(f"{100 * share:.1f}" for share in row.interval),
            f"{row.ties:,}",
        )
        for row in result.groups(by)
    ]
    return render_table(rows, headers=(result.name, "pairs", "accuracy %", "95% interval", "ties"), align="lrrrr")
