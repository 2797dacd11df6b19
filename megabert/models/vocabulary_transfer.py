"""The rows of word embeddings and decoder's bias for another vocabulary than the one they were trained for.

What both vocabularies have keeps its row. A new piece begins as the mean of the rows of the old pieces that its text
consists of (Gee et al. 2022, "Fast Vocabulary Transfer for Language Model Compression", arXiv:2402.09977), and one that
the old tokenizer cannot write as the mean of all (Hewitt 2021), the guess of a model that knows nothing
of it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional

from megabert.foundation.errors import ConfigError
from megabert.models.key_maps import VOCABULARY_ROWS
from megabert.tokens.tokenization import Tokenizer
from megabert.tokens.tokenization.written import WrittenPiece, written_pieces

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class VocabularyTransfer:
    """Which rows of an old vocabulary each piece of a new one begins with."""

    parts: tuple[tuple[int, ...], ...]
    """For each new piece the old ids whose rows it is the mean of; one if both vocabularies have it, none if the old
    one cannot write it."""
    old_size: int
    """Pieces of the old vocabulary."""
    kept: int
    """Pieces, special ones included, that both have."""

    def rows(self, value: Tensor) -> Tensor:
        """Return the new rows, padded with zeros to a multiple of 64.

        Args:
            value: Old rows, a matrix, or a vector with a number for each piece; rows past the vocabulary's end
                are not read.
        """
        old = value[: self.old_size].unflatten(0, (-1, 1)) if value.dim() == 1 else value[: self.old_size]
        starts = torch.tensor([0, *map(len, self.parts)]).cumsum(0)[:-1]
        flat = torch.tensor(list(chain.from_iterable(self.parts)), dtype=torch.int64)
        rows = functional.embedding_bag(flat, old, starts, mode="mean")
        rows[[index for index, part in enumerate(self.parts) if not part]] = old.mean(0)
        padded = functional.pad(rows, (0, 0, 0, -len(rows) % 64))
        return padded.flatten() if value.dim() == 1 else padded


def plan_transfer(old: Tokenizer, new: Tokenizer) -> VocabularyTransfer:
    """Find the old pieces of every new one.

    Raises:
        ConfigError: The two vocabularies share no piece.
    """
    speller, pieces = _Speller(old), written_pieces(new)
    special = dict(zip(new.special_ids, old.special_ids, strict=True))
    shared = [special.get(index, speller.ids.get(piece)) for index, piece in enumerate(pieces)]
    kept = sum(index is not None for index in shared)
    if kept <= len(special):
        raise ConfigError(
            f"init_vocabulary=transfer: none of the {new.vocab_size:,} pieces in {new.where} is one of the "
            f"{old.vocab_size:,} in {old.where}, so that nothing would be kept. Take a vocabulary that shares pieces "
            "with the source's, or begin with random weights, without --init-from."
        )
    spelt = iter(speller.spell([piece for piece, index in zip(pieces, shared, strict=True) if index is None]))
    parts = tuple(next(spelt) if index is None else (index,) for index in shared)
    return VocabularyTransfer(parts, old.vocab_size, kept)


def transfer_vocabulary(state: Mapping[str, Tensor], transfer: VocabularyTransfer) -> dict[str, Tensor]:
    """Return parameters by our names with the rows of the new vocabulary, and log their origin."""
    pieces, unwritten = len(transfer.parts), sum(not part for part in transfer.parts)
    origins = "%d keep their rows, %d begin as the mean of their old pieces"
    rest = "%d, which the old tokenizer cannot write, as the mean of all"
    counts = (transfer.kept, pieces - transfer.kept - unwritten, unwritten)
    logger.info(f"initial weights: of %d pieces {origins}, {rest}", pieces, *counts)
    return {name: transfer.rows(value) if name.endswith(VOCABULARY_ROWS) else value for name, value in state.items()}


class _Speller:
    """Writes pieces with the pieces of another tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.ids = {piece: index for index, piece in enumerate(written_pieces(tokenizer))}

    def spell(self, pieces: Sequence[WrittenPiece]) -> list[tuple[int, ...]]:
        """Return the ids that write each piece; none if they cannot."""
        texts = [piece.decode() or "" for piece in pieces]
        inside, first = self._tokenizer.encode_batch(texts), self._tokenizer.encode_words(texts)
        result = []
        for piece, text, within, at_start in zip(pieces, texts, inside, first, strict=True):
            if not text and piece.text:
                ids = self._spell_bytes(piece.text)
            elif piece.begins_word:
                ids = at_start.tolist()
            else:
                # Most tokenizers write any text as words; where the longest old pieces that fit inside one write all of
                # it, as WordPiece does after the first piece, these are taken.
                ids = self._spell_inside(self._tokenizer.normalize(text)) or within.tolist()
            result.append(() if self._tokenizer.special_ids.unk in ids else tuple(ids))
        return result

    def _spell_inside(self, text: str) -> list[int]:
        """Cut a text into the longest pieces that occur within words; nothing if they do not write all of it."""
        ids: list[int] = []
        while text:
            starts = (text[:end] for end in range(len(text), 0, -1))
            found = ((start, self.ids.get(WrittenPiece(start.encode(), False))) for start in starts)
            start, index = next((pair for pair in found if pair[1] is not None), ("", None))
            if index is None:
                return []
            ids.append(index)
            text = text[len(start) :]
        return ids

    def _spell_bytes(self, text: bytes) -> list[int]:
        """Return the pieces of single bytes, which only byte-level BPE has, for a part of a character."""
        ids = [self.ids.get(WrittenPiece(bytes([byte]), False)) for byte in text]
        return [] if None in ids else [index for index in ids if index is not None]
