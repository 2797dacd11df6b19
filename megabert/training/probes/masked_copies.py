"""Copies of sentences, each with one piece to guess: the input of a pseudo-log-likelihood.

The pseudo-log-likelihood of a sentence is the sum of the log-probabilities of its pieces, each of them masked in a copy
of its own (Salazar et al. 2020). Copies of many sentences are packed into one batch:

    the ship s ##ailed        [CLS] [MASK] ship s ##ailed [SEP]    [CLS] the [MASK] s ##ailed [SEP]
                              [CLS] the ship [MASK] [MASK] [SEP]   [CLS] the ship s [MASK] [SEP]

In the third copy ``##ailed`` is masked as well. If it were not, it would give ``s`` away, and a rare word, which has
several pieces, would be more probable than a frequent one (Kauf and Ivanova 2023).
"""

# S sentences, P pieces of all sentences, C copies of a batch, T packed tokens

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.data.batch import IGNORED, BatchFormat, MicroBatch, assemble_batch
from megabert.data.packing import runs_within
from megabert.settings.command_line.arguments import CopyMask
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.tokenization import SpecialIds, Tokenizer


class Sentences(NamedTuple):
    """Sentences as pieces, end to end."""

    ids_P: NDArray[np.int64]
    words_P: NDArray[np.int64]
    """Number of each piece's word in its sentence."""
    starts: NDArray[np.int64]
    """Shape (S + 1,): where each sentence starts, and the end."""

    @property
    def counts_S(self) -> NDArray[np.int64]:
        """Pieces of each sentence."""
        return np.diff(self.starts)


def encode_sentences(tokenizer: Tokenizer, texts: Sequence[str]) -> Sentences:
    """Cut texts into pieces, without special ones; a text of no pieces is a sentence of length 0."""
    encoded = tokenizer.encode_with_words(texts)
    ids: list[NDArray] = [np.empty(0, np.int64), *(own for own, _ in encoded)]
    words: list[NDArray] = [np.empty(0, np.int64), *(own for _, own in encoded)]
    starts = np.cumsum([0, *(len(one) for one, _ in encoded)], dtype=np.int64)
    return Sentences(np.concatenate(ids).astype(np.int64), np.concatenate(words).astype(np.int64), starts)


def copy_batches(
    sentences: Sentences, special: SpecialIds, *, mask: CopyMask = "within-word", longest: int, batch_tokens: int = 8192
) -> Iterator[tuple[NDArray[np.int64], MicroBatch]]:
    """Yield the copies of sentences in batches, short sentences first.

    Args:
        sentences: The sentences.
        special: Ids of the special pieces.
        mask: The masks of a copy.
        longest: Most tokens of a copy, [CLS] and [SEP] included. In a longer sentence, each piece is seen with the
            nearest ones on both sides.
        batch_tokens: Most packed tokens of a batch; one copy at least.

    Yields:
        Indices of shape (C,) of the pieces to guess in ``sentences.ids_P``, and the batch. Its masked positions are
        these pieces, in the same order.
    """
    room, counts_S = longest - 2, sentences.counts_S
    order = np.argsort(counts_S, kind="stable")
    sentence_P = np.repeat(order, counts_S[order])
    piece_P = np.concatenate([np.empty(0, np.int64), *(np.arange(*sentences.starts[s : s + 2]) for s in order)])
    lengths_P = np.minimum(counts_S, room)[sentence_P] + 2
    batch_format = BatchFormat(pad_id=special.pad, max_seq_length=longest, has_labels=False)
    for run in runs_within(range(len(piece_P)), lengths_P, batch_tokens):
        pieces_C, sentence_C = piece_P[run], sentence_P[run]
        columns = _copies(sentences, pieces_C, sentence_C, lengths_P[run], special, mask)
        yield pieces_C, assemble_batch(columns, columns.rows, np.zeros(len(run), np.int32), batch_format)


def _copies(
    sentences: Sentences,
    pieces_C: NDArray[np.int64],
    sentence_C: NDArray[np.int64],
    lengths_C: NDArray[np.int64],
    special: SpecialIds,
    mask: CopyMask,
) -> FlatInstances:
    """Return a copy of a sentence for each piece to guess."""
    ids_P, words_P, starts = sentences
    # The window: the piece in its middle, but no end of the sentence inside.
    first_C, stop_C, room_C = starts[sentence_C], starts[sentence_C + 1], lengths_C - 2
    window_C = np.clip(pieces_C - room_C // 2, first_C, stop_C - room_C)
    # Each token's copy, its position there, and its piece; the special ones at both ends are put in last.
    token_starts = np.concatenate([[0], np.cumsum(lengths_C)])
    copy_T = np.repeat(np.arange(len(pieces_C)), lengths_C)
    position_T = np.arange(token_starts[-1]) - token_starts[copy_T]
    piece_T = np.clip(window_C[copy_T] + position_T - 1, 0, len(ids_P) - 1)
    target_T = pieces_C[copy_T]
    is_masked_T = piece_T == target_T
    if mask == "within-word":
        is_masked_T |= (piece_T > target_T) & (words_P[piece_T] == words_P[target_T])
    ids_T = np.where(is_masked_T, special.mask, ids_P[piece_T])
    ids_T[token_starts[:-1]] = special.cls
    ids_T[token_starts[1:] - 1] = special.sep
    one_each = np.arange(len(pieces_C) + 1)
    return FlatInstances(
        token_starts=token_starts,
        input_ids=ids_T,
        segment_b_starts=lengths_C,
        masked_starts=one_each,
        masked_positions=pieces_C - window_C + 1,
        masked_id_starts=one_each,
        masked_ids=ids_P[pieces_C],
        next_sentence_labels=np.full(len(pieces_C), IGNORED),
        rows=one_each[:-1],
    )
