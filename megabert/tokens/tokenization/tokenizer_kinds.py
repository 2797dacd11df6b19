"""The parts of a tokenizer of BERT's family: kind and text options; and its `tokenizers` object."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization.special_pieces import SpecialNames, mark_special

CONTINUATION = "##"
MAX_WORD_CHARACTERS = 100
"""Longer words become one [UNK], as in Hugging Face's BERT (google's own code allows 200)."""
SPACE_BYTE = "\u0120"
"""The character that byte-level BPE writes for a space: a piece that begins with it begins a word."""
SPACE_MARK = "\u2581"
"""The character that SentencePiece writes for a space."""
_LONG_SPAN = 1000
_SPACE, _CHARACTERS_PER_SPLIT = re.compile(r"\s"), 1 << 18
# Marks that BERT makes words of their own whatever is around them; long spans are cut at them before they are counted.
_MARKS = "!-/:-@\\[-`{-~\u00ab\u00bb\u2010-\u2027\u2030-\u2043\u3001-\u3003\u3008-\u3011"
_AT_MARKS = re.compile(f"[{_MARKS}]|[^{_MARKS}]+")
Pieces = Literal["wordpiece", "byte_bpe", "unigram"]
"""Kinds that can be trained."""


@contextmanager
def panics_as_errors(where: str) -> Iterator[None]:
    """Turn a panic of `tokenizers` into an error; Rust's is a BaseException, which nothing else would stop.

    Raises:
        DataError: There was one.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"{where}: `tokenizers` broke down on it ({error}). Fetch the tokenizer's files again, or give another one."
        ) from error


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Properties of a kind of tokenizer: its model, and how its pieces are written."""

    name: str
    model: type
    """Class of the `tokenizers` model."""
    names: SpecialNames
    """Usual spelling of its special pieces."""
    continues_word: Callable[[str], bool]
    """Whether a piece continues a word."""
    is_usual: Callable[[tokenizers.Tokenizer], bool]
    """Whether a tokenizer with this model is of the form that BERT and its relatives use."""
    identity: tuple[str, ...]
    """Settings of the model that determine ids, in addition to the pieces."""
    decoder: Any = None
    """Decoder to use instead of the file's own; None keeps that."""
    keeps_spaces: bool = False
    """Whether the space before a word is part of its first piece, so that text cannot be cut at spaces unmarked."""
    has_short_words: bool = False
    """Whether a word ends at each ideograph and at 100 characters, so that a text without spaces is no single word."""


BERT_WORDS = pre_tokenizers.BertPreTokenizer()
WORDPIECE = Kind(
    name="wordpiece",
    model=models.WordPiece,
    names=SpecialNames(),
    continues_word=lambda piece: piece.startswith(CONTINUATION),
    is_usual=lambda backend: bool(
        backend.model.continuing_subword_prefix == CONTINUATION and backend.pre_tokenizer is not None
    ),
    identity=("unk_token", "continuing_subword_prefix", "max_input_chars_per_word"),
    # The stock clean-up rewrites text on decoding: " do not" becomes " don't".
    decoder=decoders.WordPiece(prefix=CONTINUATION, cleanup=False),
    has_short_words=True,
)
BYTE_BPE = Kind(
    name="byte_bpe",
    model=models.BPE,
    names=SpecialNames(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>"),
    continues_word=lambda piece: not piece.startswith(SPACE_BYTE),
    is_usual=lambda backend: isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel),
    identity=("merges", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback"),
    keeps_spaces=True,
)
UNIGRAM = Kind(
    name="unigram",
    model=models.Unigram,
    names=SpecialNames(pad="<pad>", unk="<unk>"),
    continues_word=lambda piece: not piece.startswith(SPACE_MARK),
    is_usual=lambda backend: True,
    identity=("vocab", "unk_id", "byte_fallback"),
)
WORD_LEVEL = Kind(
    name="word_level",
    model=models.WordLevel,
    names=SpecialNames(),
    continues_word=lambda piece: False,
    is_usual=lambda backend: backend.normalizer is None,
    identity=("unk_token",),
)


def kind_of(backend: tokenizers.Tokenizer, where: str) -> Kind:
    """Return the kind of a tokenizer.

    Raises:
        DataError: The tokenizer is of another kind, or of a variant that BERT and its relatives do not use.
    """
    model = backend.model
    for kind in (WORDPIECE, BYTE_BPE, UNIGRAM, WORD_LEVEL):
        if isinstance(model, kind.model) and kind.is_usual(backend):
            return kind
    raise DataError(
        f"{where}: the model is {type(model).__name__}, or in a form that BERT and its relatives do not use; supported "
        f"are WordPiece with {CONTINUATION!r} and a pre_tokenizer, byte-level BPE, Unigram and WordLevel without a "
        "normalizer. Give the tokenizer of such a model."
    )


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Treatment of text before it is cut into pieces. The fields have Hugging Face's names."""

    do_lower_case: bool = False
    """Lower-case the text."""
    strip_accents: bool = False
    """Decompose (NFD) and drop combining marks."""
    tokenize_chinese_chars: bool = True
    """Make every CJK ideograph a word of its own."""
    compose: bool = False
    """Compose again (NFC) after stripping accents; otherwise Hangul stays split into jamo. It is the only option that
    transformers' BertTokenizer class cannot express."""


def byte_characters() -> list[str]:
    """Return the character that byte-level BPE writes for each byte (Radford et al. 2019).

    Bytes that are printable in Latin-1 stand for themselves, the others for characters from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def words_of(text: str) -> Iterator[str]:
    """Yield the words between white space, without a list of all words of a long text."""
    start = 0
    while start < len(text):
        space = _SPACE.search(text, start + _CHARACTERS_PER_SPLIT)
        end = space.start() if space else len(text)
        yield from text[start:end].split()
        start = end


def split_spans(text: str) -> Iterator[str]:
    """Yield the spans between white space. Very long spans are cut at marks, which gives the same words.

    Millions of quotation marks without a space are counted in the time of reading them, instead of being handed to
    `tokenizers` and back one by one.
    """
    for span in words_of(text):
        if len(span) <= _LONG_SPAN:
            yield span
        else:
            yield from _AT_MARKS.findall(span)


def build_normalizer(options: TextOptions) -> normalizers.Normalizer:
    """Build BERT's normaliser, followed by NFC if the options ask for it."""
    bert = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.tokenize_chinese_chars,
        strip_accents=options.strip_accents,
        lowercase=options.do_lower_case,
    )
    return normalizers.Sequence([bert, normalizers.NFC()]) if options.compose else bert


def options_of(backend: tokenizers.Tokenizer) -> TextOptions | None:
    """Return the text options of a backend, or None if it treats text in a way that the options cannot express."""
    if backend.normalizer is None or not isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer):
        return None
    state = json.loads(backend.normalizer.__getstate__())
    parts = [part["type"] for part in state.get("normalizers", [])]
    compose = parts == ["BertNormalizer", "NFC"]
    if compose:
        state = state["normalizers"][0]
    if state["type"] != "BertNormalizer" or not state["clean_text"]:
        return None
    # Unset, accents are stripped together with the case, as in google-research/bert.
    strip_accents = state["strip_accents"] if state["strip_accents"] is not None else state["lowercase"]
    return TextOptions(
        do_lower_case=state["lowercase"],
        strip_accents=strip_accents,
        tokenize_chinese_chars=state["handle_chinese_chars"],
        compose=compose,
    )


def has_plain_byte_bpe(backend: tokenizers.Tokenizer) -> bool:
    """Return whether byte-level BPE cuts text into words by GPT-2's pattern alone, and merges all that it has learned.

    Then the ids of a word depend on that word only, and text between spaces can be encoded by itself.
    """
    state = json.loads(backend.to_str())
    model = state["model"]
    unusual = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
    return (
        state["normalizer"] is None
        and state["pre_tokenizer"].get("use_regex", True)
        and not any(model.get(name) for name in unusual)
        and all(character in model["vocab"] for character in pre_tokenizers.ByteLevel.alphabet())
    )


def build_backend(
    vocabulary: Mapping[str, int],
    options: TextOptions,
    names: SpecialNames = WORDPIECE.names,
    *,
    longest_word: int = MAX_WORD_CHARACTERS,
) -> tokenizers.Tokenizer:
    """Assemble a BERT WordPiece tokenizer from its vocabulary.

    Args:
        vocabulary: Ids by piece, with the special pieces among them.
        options: Treatment of text before it is cut into pieces.
        names: Spelling of the special pieces; BERT's by default.
        longest_word: Characters of the longest word that is cut into pieces; a longer one is unknown.

    Returns:
        A tokenizer without truncation or padding, whose file is the one that transformers would save.
    """
    model = models.WordPiece(
        dict(vocabulary),
        unk_token=names.unk,
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=longest_word,
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = build_normalizer(options)
    backend.pre_tokenizer = BERT_WORDS
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return put_template(backend, vocabulary, names)


def build_unigram(
    scores: Sequence[tuple[str, float]], spare: Sequence[str] = (), names: SpecialNames = WORDPIECE.names
) -> tokenizers.Tokenizer:
    """Assemble a Unigram tokenizer as SentencePiece has it (Kudo 2018); text is composed (NFC) first.

    Args:
        scores: Each learned piece with the logarithm of its probability.
        spare: Spare pieces; they follow the special ones.
        names: Spelling of the special pieces; BERT's by default, as in DeBERTa 2 and 3.
    """
    scored = [*((piece, 0.0) for piece in (*names, *spare)), *scores]
    vocabulary = {piece: index for index, (piece, _) in enumerate(scored)}
    backend = tokenizers.Tokenizer(models.Unigram(scored, vocabulary[names.unk]))
    white_space = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), white_space, normalizers.Strip()])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return put_template(backend, vocabulary, names)


def build_word_level(symbols: Sequence[str], names: SpecialNames) -> tokenizers.Tokenizer:
    """Assemble a tokenizer that looks symbols up in a table; in a text they are separated by white space.

    If each symbol but the special ones is one character, every character of a text is a symbol.

    Args:
        symbols: Symbols in the order of their ids, the special ones among them.
        names: Spelling of the special pieces.
    """
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=names.unk))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if all(len(symbol) == 1 for symbol in symbols if symbol not in names):
        characters = pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, characters])
    return put_template(backend, vocabulary, names)


def put_template(
    backend: tokenizers.Tokenizer, vocabulary: Mapping[str, int], names: SpecialNames, *, separators: int = 1
) -> tokenizers.Tokenizer:
    """Register the special pieces, and write ``[CLS] A [SEP] B [SEP]`` around texts, as BERT does.

    Args:
        backend: The tokenizer, which is returned.
        vocabulary: Ids of the special pieces, possibly among others.
        names: Spelling of the special pieces.
        separators: How many [SEP]s separate the texts of a pair.
    """
    mark_special(backend, names)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{names.cls}:0 $A:0 {names.sep}:0",
        pair=f"{names.cls}:0 $A:0 {f'{names.sep}:0 ' * separators}$B:1 {names.sep}:1",
        special_tokens=[(name, vocabulary[name]) for name in (names.cls, names.sep)],
    )
    if isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):  # as RobertaProcessing: no spaces in offsets
        trimmed = processors.ByteLevel(trim_offsets=True)
        backend.post_processor = processors.Sequence([trimmed, backend.post_processor])
    return backend


def build_byte_bpe(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], names: SpecialNames, *, add_prefix_space: bool
) -> tokenizers.Tokenizer:
    """Assemble a byte-level BPE tokenizer as transformers does for RoBERTa (Radford et al. 2019; Liu et al. 2019).

    Args:
        vocabulary: Ids by piece, with the special pieces among them.
        merges: Pairs of pieces to merge, in the order in which they were learned.
        names: Spelling of the special pieces.
        add_prefix_space: Whether a text is read as if it began with a space.
    """
    backend = tokenizers.Tokenizer(models.BPE(dict(vocabulary), list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    plain = [AddedToken(name, special=True, normalized=False) for name in (names.cls, names.pad, names.sep, names.unk)]
    # The mask takes the space before it, as the word that it replaces would.
    backend.add_special_tokens([*plain, AddedToken(names.mask, special=True, normalized=False, lstrip=True)])
    backend.post_processor = processors.RobertaProcessing(
        (names.sep, vocabulary[names.sep]),
        (names.cls, vocabulary[names.cls]),
        trim_offsets=True,
        add_prefix_space=add_prefix_space,
    )
    return backend


def canonical_normalizer(state: Any) -> Any:
    """Spell the normaliser's state in one way, in place: strip_accents=None means "as lowercase"."""
    if state and state["type"] == "BertNormalizer" and state["strip_accents"] is None:
        state["strip_accents"] = state["lowercase"]
    for part in (state or {}).get("normalizers", []):
        canonical_normalizer(part)
    return state
