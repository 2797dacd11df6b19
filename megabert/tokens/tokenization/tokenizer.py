"""The tokenizer that the rest of the package sees: text in, numpy ids out, no special pieces added or recognised.

It is long because one class answers all that other rooms ask of a tokenizer; the work is in the files next to it.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers
from numpy.typing import NDArray

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import special_pieces
from megabert.tokens.tokenization import tokenizer_kinds as kinds
from megabert.tokens.tokenization.characters import character_kinds
from megabert.tokens.tokenization.tokenizer_kinds import split_spans

if TYPE_CHECKING:
    from megabert.tokens.tokenization.span_cache import SpanCache

FEW_TEXTS, FEW_CHARACTERS = 256, 1 << 18
"""Up to this many texts, or characters, are given to `tokenizers`, because loading the compiled loops takes longer."""
CHARACTERS_PER_CALL = 1 << 18
"""Characters that `tokenizers` gets at a time, unless one text is longer: it takes a hundred times their memory."""


class Tokenizer:
    """A tokenizer of any kind in `backend`; its ids are the ids that Hugging Face's gives for the same files.

    Text is never truncated or padded, ``[CLS]`` and ``[SEP]`` are not added, and special pieces that a text
    spells out, such as a literal ``[MASK]``, are cut into pieces like any other text. Spare pieces (``[unused0]``) and
    other added special pieces are so too, unless the tokenizer is made to read them.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        names: special_pieces.SpecialNames | None = None,
        where: str = "tokenizer",
        reads_spare: bool = False,
    ) -> None:
        """Wrap a `tokenizers` object; it is copied.

        Args:
            backend: WordPiece, byte-level BPE, Unigram or WordLevel.
            names: How the special pieces are written; by default as is usual for the kind.
            where: The file or folder that it came from, for messages.
            reads_spare: Whether a spare or other added special piece that a text spells out is taken as that piece.

        Raises:
            DataError: The model is of another kind, a special piece is missing, or ids have gaps.
        """
        self.kind = kinds.kind_of(backend, where)
        self.names = names or self.kind.names
        self.where = where
        self._backend = tokenizers.Tokenizer.from_str(backend.to_str())
        # A saved tokenizer may cut or pad every text: sentence-transformers' files do so at 128.
        self._backend.no_truncation()
        self._backend.no_padding()
        # Added pieces have ids as well, but the model inside the backend does not know them. The original is asked: a
        # copy lacks pieces whose ids are far out of range.
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.special_ids: special_pieces.SpecialIds = special_pieces.find_special_ids(
            vocabulary, self.names, where=where
        )
        special_pieces.mark_special(self._backend, self.names)
        self._spare_ids = special_pieces.find_spare_ids(self._backend, self.names)
        self._read_ids = self._spare_ids if reads_spare else []
        if self.kind.decoder is not None:
            self._backend.decoder = self.kind.decoder
        self.pieces: list[str] = _pieces_by_id(vocabulary, where)
        """Pieces in the order of their ids."""
        # Added pieces may contain spaces or absorb those around them; spans between spaces are then not independent.
        self._options = kinds.options_of(self._backend)
        added = self._backend.get_added_tokens_decoder().values()
        has_usual_text = self._options is not None or (
            self.kind is kinds.BYTE_BPE and kinds.has_plain_byte_bpe(self._backend)
        )
        self._has_spans = has_usual_text and all(token.special for token in added) and not self._read_ids

    @cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        """What reads text, made for the first one: a copy of a table of millions takes seconds, and ids need none."""
        return self._make_encoder(self._read_ids)

    @cached_property
    def _mask_encoder(self) -> tokenizers.Tokenizer:
        return self._make_encoder([*self._read_ids, self.special_ids.mask])

    def _make_encoder(self, read: list[int]) -> tokenizers.Tokenizer:
        """Return a tokenizer that takes the added pieces with these ids, and no other special ones, for themselves."""
        encoder = self._backend
        if read:
            encoder = special_pieces.with_ordinary_added(encoder, read, mask=self.special_ids.mask)
        if self.kind in (kinds.WORD_LEVEL, kinds.UNIGRAM):
            hidden = {*self.special_ids, *self._spare_ids} - {*read}
            encoder = special_pieces.without_spelling(encoder, {self.pieces[index] for index in hidden})
        encoder.encode_special_tokens = True
        return encoder

    @cached_property
    def _spans(self) -> "SpanCache":
        """The words that have been met, with their pieces; a new word goes to our loops, or else to the library."""
        from megabert.tokens.tokenization.span_cache import BytePieces, SpanCache, WordPieces

        state = json.loads(self._backend.to_str())
        model = state["model"]
        if self.kind is kinds.BYTE_BPE:
            # If a text is read as if it began with a space, its first word is not the one that is written there.
            is_as_written = not state["pre_tokenizer"]["add_prefix_space"]
            merged = BytePieces.of(model["vocab"], model["merges"]) if is_as_written else None
            return SpanCache(self._encode_lists, merged, keeps_spaces=True)
        if model["unk_token"] != self.names.unk:
            return SpanCache(self._encode_lists)
        assert self._options is not None
        kind_of_character = character_kinds(self._backend, self._options)
        pieces = WordPieces.of(
            model["vocab"],
            kind_of_character,
            is_lower=self._options.do_lower_case,
            unknown=self.special_ids.unk,
            longest=min(model["max_input_chars_per_word"], np.iinfo(np.int32).max),
        )
        return SpanCache(self._encode_lists, pieces, kinds=kind_of_character)

    def forget_spans(self) -> None:
        """Free the memory in which `encode_flat` keeps spans of earlier texts, some 40 MiB after many."""
        vars(self).pop("_spans", None)  # a cached property is computed again after this

    @property
    def vocab_size(self) -> int:
        """Number of pieces, added ones included."""
        return len(self.pieces)

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Ids by piece."""
        return {piece: index for index, piece in enumerate(self.pieces)}

    @property
    def is_symbol_table(self) -> bool:
        """Whether it looks symbols up in a table, and has no text to cut."""
        return self.kind is kinds.WORD_LEVEL

    @property
    def reads_numbers(self) -> bool:
        """Whether the symbol of each id, but for the special ones, is its number."""
        return all(piece in (str(index), *self.names) for index, piece in enumerate(self.pieces))

    @cached_property
    def is_subword(self) -> NDArray[np.bool_]:
        """Whether the piece of each id continues a word, as a boolean array; special and spare pieces do not."""
        continues = np.array([self.kind.continues_word(piece) for piece in self.pieces], dtype=bool)
        continues[[*self.special_ids, *self._spare_ids]] = False
        return continues

    @cached_property
    def sha256(self) -> str:
        """Hex digest of all that determines ids: vocabulary, text options, special pieces; not of the files' form."""
        text = json.dumps(self._identity(), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def encode_flat(self, texts: Sequence[str] | pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Tokenize many texts into one array.

        Args:
            texts: Texts of any length; an Arrow array is not copied.

        Returns:
            Ids of all texts, int32, end to end; and int64 offsets of shape (len(texts) + 1,): text i has the
            ids ``ids[offsets[i]:offsets[i + 1]]``.

        Raises:
            DataError: A text has half of a surrogate pair, which is no character.
        """
        if not isinstance(texts, pa.Array):
            _refuse_surrogates(texts)
        if self._has_spans and (len(texts) > FEW_TEXTS or _characters(texts) > FEW_CHARACTERS):
            return self._spans.encode_flat(texts)
        id_lists = self._encode_lists(texts.to_pylist() if isinstance(texts, pa.Array) else list(texts))
        offsets = np.cumsum([0, *map(len, id_lists)], dtype=np.int64)
        return np.fromiter(chain.from_iterable(id_lists), np.int32, offsets[-1]), offsets

    def _encode_lists(self, texts: list[str]) -> list[list[int]]:
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64) // CHARACTERS_PER_CALL
        borders = [0, *(np.flatnonzero(np.diff(ends)) + 1).tolist(), len(texts)]
        ids: list[list[int]] = []
        with kinds.panics_as_errors(self.where):
            for start, end in pairwise(borders):
                encodings = self._encoder.encode_batch_fast(texts[start:end], add_special_tokens=False)
                ids += [encoding.ids for encoding in encodings]
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Tokenize texts into one int32 array of ids each."""
        ids, offsets = self.encode_flat(texts)
        return [ids[start:end] for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]

    def encode(self, text: str) -> NDArray[np.int32]:
        """Tokenize one text into an int32 array of ids."""
        return self.encode_flat([text])[0]

    def encode_with_masks(self, text: str) -> NDArray[np.int32]:
        """Tokenize one text, in which a mask written as in the vocabulary is the mask, with the spaces before it."""
        if self.names.mask not in text:
            return self.encode(text)
        _refuse_surrogates([text])
        with kinds.panics_as_errors(self.where):
            return np.array(self._mask_encoder.encode(text, add_special_tokens=False).ids, np.int32)

    @cached_property
    def separators_in_pair(self) -> int:
        """How many [SEP]s separate the two texts of a pair: one, or two for RoBERTa."""
        return max(1, self._backend.num_special_tokens_to_add(True) - 2)

    def join(
        self, a: Sequence[int] | NDArray, b: Sequence[int] | NDArray | None = None
    ) -> tuple[NDArray[np.int32], int]:
        """Return ``[CLS] a [SEP]`` or ``[CLS] a [SEP] b [SEP]``, and the index of the first token of b.

        Args:
            a: Ids of the first text.
            b: Ids of the second text; without it, the index is the number of all ids.
        """
        start: list[Sequence[int] | NDArray]
        start = [[self.special_ids.cls], a, [self.special_ids.sep] * (1 if b is None else self.separators_in_pair)]
        ids = np.concatenate(start if b is None else [*start, b, [self.special_ids.sep]]).astype(np.int32)
        return ids, sum(map(len, start))

    def encode_words(self, words: Sequence[str]) -> list[NDArray[np.int32]]:
        """Tokenize each word by itself as inside a text: if pieces keep the space before a word, it gets one."""
        return self.encode_batch([f" {word}" for word in words] if self.kind.keeps_spaces else words)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Tokenize texts, with the characters that each piece came from.

        Returns:
            For each text its ids, and offsets of shape (ids, 2): piece i came from ``text[start:end]``, counted in
            characters of the text as given, before any normalisation.

        Raises:
            DataError: As for `encode_flat`.
        """
        return [
            (np.array(one.ids, np.int32), np.array(one.offsets, np.int32).reshape(-1, 2))
            for one in self._encodings(texts)
        ]

    def encode_with_words(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Tokenize texts, with the word that each piece is part of.

        Returns:
            For each text its ids, and the number of each piece's word. Words are the pre-tokenizer's: text
            between spaces, and for WordPiece and byte-level BPE punctuation marks as well.

        Raises:
            DataError: As for `encode_flat`.
        """
        # An added piece belongs to no word, so it gets a number of its own.
        return [
            (
                np.array(one.ids, np.int32),
                np.array([-index if word is None else word for index, word in enumerate(one.word_ids, 1)], np.int32),
            )
            for one in self._encodings(texts)
        ]

    def _encodings(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        _refuse_surrogates(texts)
        with kinds.panics_as_errors(self.where):
            return self._encoder.encode_batch(list(texts), add_special_tokens=False)

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Join ids into text, special pieces shown; words are separated by single spaces. Unknown ids give no text.

        Raises:
            DataError: An id is negative, or does not fit into 32 bits.
        """
        wrong = next((index for index in ids if not 0 <= index < 1 << 32), None)
        if wrong is not None:
            raise DataError(f"{self.where}: {wrong} is no id, allowed are 0 to {self.vocab_size - 1}.")
        with kinds.panics_as_errors(self.where):
            return self._backend.decode([int(index) for index in ids], skip_special_tokens=False)

    def normalize(self, text: str) -> str:
        """Return the text as the model's vocabulary sees it: cleaned, and lower-cased if the tokenizer does so."""
        _refuse_surrogates([text])
        with kinds.panics_as_errors(self.where):
            return self._backend.normalizer.normalize_str(text) if self._backend.normalizer else text

    def split_spans(self, text: str) -> Iterable[str]:
        """Return parts of a text that are cut into words independently of each other."""
        return text.split() if self._options is None else split_spans(text)

    def split_words(self, text: str) -> list[str]:
        """Normalise a text and cut it into the words that are then cut into pieces."""
        if self.kind is kinds.WORDPIECE:
            return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(self.normalize(text))]
        return self.normalize(text).split()

    def can_write(self, character: str, *, is_first: bool) -> bool:
        """Whether there is a piece for a normalised character, as the first of a word or inside one."""
        if self.kind is kinds.WORDPIECE:
            return (character if is_first else kinds.CONTINUATION + character) in self.vocab
        return self.special_ids.unk not in self.encode(character).tolist()

    def to_json(self) -> str:
        """Return the backend in the form of ``tokenizer.json``."""
        return self._backend.to_str()

    def _identity(self) -> dict[str, Any]:
        state = json.loads(self._backend.to_str())
        model = state["model"]
        return {
            "pieces": self.pieces,
            "special": self.names._asdict(),
            # Pieces that were added in addition to the special ones: text is searched for them first.
            "added": [token for token in state["added_tokens"] if not token.pop("special")],
            "model": [model.get(key) for key in self.kind.identity],
            "normalizer": kinds.canonical_normalizer(state["normalizer"]),
            "pre_tokenizer": state["pre_tokenizer"],
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle through the JSON form, so that workers get the same tokenizer with either start method."""
        return _restore, (self._backend.to_str(), self.names, self.where, bool(self._read_ids))


def _refuse_surrogates(texts: Iterable[str]) -> None:
    """Refuse half of a surrogate pair, which UTF-8 cannot hold; an escape in JSON may make one.

    Raises:
        DataError: A text has one.
    """
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"texts[{number}]: the character at {error.start} is half of a surrogate pair "
                f"(U+{ord(text[error.start]):04X}). Decode the text with errors='replace', or remove it."
            ) from None


def _characters(texts: Sequence[str] | pa.StringArray) -> int:
    """Return the characters of texts; the bytes of UTF-8 if they are in an Arrow array."""
    return int(pc.sum(pc.binary_length(texts)).as_py() or 0) if isinstance(texts, pa.Array) else sum(map(len, texts))


def _restore(state: str, names: special_pieces.SpecialNames, where: str, reads_spare: bool) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(state), names=names, where=where, reads_spare=reads_spare)


def _pieces_by_id(vocabulary: dict[str, int], where: str) -> list[str]:
    by_id = sorted(vocabulary, key=vocabulary.__getitem__)
    gap = next((position for position, piece in enumerate(by_id) if vocabulary[piece] != position), None)
    if gap is not None:
        raise DataError(
            f"{where}: ids are not 0 to {len(by_id) - 1}: id {gap} is missing or used twice. "
            "Renumber the vocabulary, one piece a line, each piece once."
        )
    return by_id
