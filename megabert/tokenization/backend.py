"""`tokenizers` objects for BERT and RoBERTa, assembled from normaliser, splitting into words, model and template."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from megabert.tokenization.special_tokens import SpecialNames

CONTINUATION = "##"
# Longer words become one [UNK], as in Hugging Face's BERT (google's own code allows 200).
MAX_WORD_CHARACTERS = 100


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
    """Compose again (NFC) after stripping accents. Otherwise Hangul stays split into jamo."""

    @property
    def is_stock(self) -> bool:
        """Whether transformers' BertTokenizer class can express these options."""
        return not self.compose


def build_normalizer(options: TextOptions) -> normalizers.Normalizer:
    """Build BERT's normaliser, followed by NFC where the options ask for it."""
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


def build_backend(
    vocabulary: Mapping[str, int], options: TextOptions, names: SpecialNames | None = None
) -> tokenizers.Tokenizer:
    """Assemble a BERT WordPiece tokenizer from its vocabulary.

    Args:
        vocabulary: Ids by piece, with the special pieces among them.
        options: Treatment of text before it is cut into pieces.
        names: Spelling of the special pieces; BERT's by default.

    Returns:
        A tokenizer without truncation or padding, whose file is the one that transformers would save.
    """
    names = names or SpecialNames()
    model = models.WordPiece(
        dict(vocabulary),
        unk_token=names.unk,
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=MAX_WORD_CHARACTERS,
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = build_normalizer(options)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    mark_special(backend, names)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{names.cls}:0 $A:0 {names.sep}:0",
        pair=f"{names.cls}:0 $A:0 {names.sep}:0 $B:1 {names.sep}:1",
        special_tokens=[(name, vocabulary[name]) for name in (names.cls, names.sep)],
    )
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


def mark_special(backend: tokenizers.Tokenizer, names: SpecialNames) -> None:
    """Register those of the five special pieces as special that the tokenizer's file did not."""
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [name for name in asdict(names).values() if name not in known]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in missing])
