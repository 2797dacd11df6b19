"""The files of a tokenizer's folder, checked: `tokenizer.json`, and the settings next to it.

These say its class, the spelling of special pieces, and what happens to case and accents.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag
from tokenizers import AddedToken

from megabert.foundation.errors import DataError
from megabert.foundation.files import read_small
from megabert.foundation.json_files import parse_json, parse_values, read_json
from megabert.settings.config.yaml_text import own_yaml
from megabert.tokens.tokenization.special_pieces import SpecialNames
from megabert.tokens.tokenization.tokenizer_kinds import Kind, TextOptions

LONGEST_PIECE = 4096
"""Characters of a piece; `tokenizers` overflows its stack at some 100,000. No known vocabulary has one above 300."""
MOST_TEXT_STEPS = 64
"""Normalizers, pre-tokenizers and decoders of a file, each."""
MOST_GROWTH = 64
"""How many times longer its normalizers, or its decoders, may make a text, all together."""
_GROWTH = {"Precompiled": 18, "ByteLevel": 2}
"""The most characters for one: NFKC makes 18 of U+FDFA; byte-level writes a character for each byte."""
REMEDY = "Fetch the tokenizer again."

PieceText = Annotated[str, Field(max_length=LONGEST_PIECE)]
Id = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True)
class AddedPiece:
    """A piece that was added to a vocabulary, with `tokenizers`' names and defaults."""

    content: Annotated[PieceText, Field(min_length=1)]
    id: Id = -1
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False

    def as_token(self) -> AddedToken:
        """Return the form that `tokenizers` takes."""
        flags = {name: getattr(self, name) for name in ("single_word", "lstrip", "rstrip", "special")}
        return AddedToken(
            self.content, normalized=not self.special if self.normalized is None else self.normalized, **flags
        )


@dataclass(frozen=True)
class _Model:
    vocab: Annotated[
        Annotated[list[tuple[PieceText, Annotated[float, Field(allow_inf_nan=False)]]], Tag("scores")]
        | Annotated[dict[PieceText, Id], Tag("ids")],
        Discriminator(lambda value: "scores" if isinstance(value, list) else "ids"),
    ]
    dropout: float | None = None


@dataclass(frozen=True)
class TokenizerJson:
    """The fields that are checked here; `tokenizers` checks the others."""

    model: _Model
    added_tokens: list[AddedPiece] = field(default_factory=list)
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None


def read_tokenizer_json(path: Path) -> tuple[str, TokenizerJson]:
    """Return the text of a ``tokenizer.json``, and its checked fields.

    Raises:
        DataError: A field has another type, or is out of bounds.
    """
    content = read_small(path)
    checked = parse_json(content, TokenizerJson, where=str(path), remedy=REMEDY)
    if checked.model.dropout:
        raise DataError(
            f"{path}: model.dropout is {checked.model.dropout}, so that the same text would get other ids each time. "
            "Set it to null."
        )
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        _check_steps(list(_steps(getattr(checked, name))), f"{path}: {name}")
    return content.decode(), checked


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer, a pre-tokenizer or a decoder, without the sequences around them."""
    if isinstance(part, dict):
        inner = [value for name in ("normalizers", "pretokenizers", "decoders") for value in part.get(name) or ()]
        yield from (part,) if not inner else (step for one in inner for step in _steps(one))


def _check_steps(steps: list[dict[str, Any]], where: str) -> None:
    growth = 1.0
    for step in steps:
        pattern = step.get("pattern")
        shortest = len(str(pattern.get("String") or "")) if isinstance(pattern, dict) else 1
        content = len(str(step.get("content") or step.get("prepend") or ""))
        growth *= max(1.0, content / max(1, shortest), _GROWTH.get(str(step.get("type")), 1))
        if content > LONGEST_PIECE or growth > MOST_GROWTH or len(steps) > MOST_TEXT_STEPS:
            raise DataError(
                f"{where}: has {len(steps):,} steps, which can make a text {growth:,.0f} times longer; up to "
                f"{MOST_TEXT_STEPS} and {MOST_GROWTH} times are read. Remove steps that insert text. {REMEDY}"
            )


def steps_of(part: Any) -> dict[str, dict[str, Any]]:
    """Return the steps of a part of a ``tokenizer.json`` by their types."""
    return {str(step.get("type")): step for step in _steps(part)}


_TABLES = own_yaml(__file__, "tokenizer_classes.yaml")


def _classes(table: str) -> frozenset[str]:
    return frozenset(f"{name}Tokenizer" for name in _TABLES[table].split())


BERT_CLASSES, BYTE_BPE_CLASSES, UNIGRAM_CLASSES, OWN_CLASSES = map(
    _classes, ("bert_classes", "byte_bpe_classes", "unigram_classes", "own_classes")
)
"""Classes whose settings prevail over ``tokenizer.json`` in transformers 5: BertTokenizer under several names, classes
of byte-level BPE and of Unigram, and classes of WordPiece with BertTokenizer's defaults, which here have to be what
``tokenizer.json`` says."""
PAIR_SEPARATORS: Mapping[str | None, int] = {
    **dict.fromkeys(BERT_CLASSES | _classes("one_separator"), 1),
    **dict.fromkeys(_classes("two_separators"), 2),
}
"""How many [SEP]s separate the texts of a pair, for classes that put their own special pieces around texts."""
BERT_TYPES = frozenset(_TABLES["bert_types"].split())
"""Types of models for which BertTokenizer is the class if none is stated."""
SEGMENT_TYPES = BERT_TYPES - {"distilbert"}
"""Types of BERTs that read the two texts of a pair as different segments."""
OTHER_TYPES: Mapping[str, str] = _TABLES["other_types"]
"""The same for other classes."""
OTHER_WORDS: Mapping[str | None, str] = _TABLES["other_words"]
"""Classes with another step before WordPiece, byte-level BPE or Unigram, or in its place, and that step."""
GENERAL_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")
"""Classes that take ``tokenizer.json`` as it is."""
GENERAL_TYPES = frozenset(("modernbert",))
"""Types of models for which transformers 5 takes the general class, whatever class is stated."""
ALLOWED: Mapping[str, tuple[list[Any], str]] = _TABLES["allowed"]
"""Settings that must have one of these values, and why."""
UNUSED: Mapping[str, str] = _TABLES["unused"]
"""Settings that change no ids, by reason."""
_UNUSED_NAMES = frozenset(" ".join(UNUSED.values()).split())


Extra = list[str | AddedPiece] | dict[str, str | AddedPiece] | None
"""Further special pieces; the keys of a dict are a program's names."""


@dataclass(frozen=True, kw_only=True)
class FolderSettings:
    """The settings of ``tokenizer_config.json`` and ``special_tokens_map.json`` that count; None if neither says it."""

    tokenizer_class: str | None = None
    model_type: str | None = None
    pad_token: str | AddedPiece | None = None
    unk_token: str | AddedPiece | None = None
    cls_token: str | AddedPiece | None = None
    sep_token: str | AddedPiece | None = None
    mask_token: str | AddedPiece | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    add_prefix_space: bool | None = None
    keep_accents: bool | None = None
    split_by_punct: bool | None = None
    model_input_names: list[str] | None = None
    added_tokens_decoder: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], AddedPiece] | None = None
    additional_special_tokens: list[str | AddedPiece] | None = None
    extra_special_tokens: Extra = None

    def extra_pieces(self) -> list[AddedPiece]:
        """Return the special pieces in addition to the named ones."""
        return _pieces(self.extra_special_tokens) or _pieces(self.additional_special_tokens)


def _pieces(extra: Extra) -> list[AddedPiece]:
    pieces = extra.values() if isinstance(extra, dict) else extra or []
    return [AddedPiece(content=one, special=True) if isinstance(one, str) else one for one in pieces if one]


@dataclass(frozen=True)
class _ModelConfig:
    """The fields of ``config.json`` that choose the class of a tokenizer whose own files name none."""

    tokenizer_class: str | None = None
    model_type: str | None = None


def read_folder_settings(folder: Path) -> FolderSettings:
    """Read the settings of a folder and the class that transformers takes.

    Raises:
        DataError: A file is damaged, a setting has a value that is not known here, or the class cuts words in another
            way.
    """
    settings, contents = FolderSettings(), dict[Path, dict[str, Any]]()
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        # Added pieces of the first file make the second one superfluous; otherwise the second prevails.
        if (folder / name).exists() and settings.added_tokens_decoder is None:
            contents[folder / name] = content = read_json(folder / name, dict[str, Any], remedy=REMEDY)
            said = vars(parse_values(content, FolderSettings, where=str(folder / name), remedy=REMEDY)).items()
            settings = replace(settings, **{name: value for name, value in said if value is not None})
        if name == "tokenizer_config.json":  # transformers 5 reads the older name of this file only as the newer one
            newer = settings.extra_special_tokens or settings.additional_special_tokens
            settings = replace(settings, extra_special_tokens=newer, additional_special_tokens=None)
    config = folder / "config.json"
    model = read_json(config, _ModelConfig, remedy=REMEDY) if config.is_file() else _ModelConfig()
    settings = replace(settings, tokenizer_class=_class_of(model, settings), model_type=model.model_type)
    if settings.tokenizer_class in OTHER_WORDS:
        raise DataError(
            f"{folder}: tokenizer_class={settings.tokenizer_class}, which {OTHER_WORDS[settings.tokenizer_class]}; "
            "megabert has WordPiece, byte-level BPE and Unigram on plain text, with other ids. Give another model."
        )
    for path, content in contents.items():
        _refuse_other_settings(path, content)
    names = settings.model_input_names
    if names is not None and "token_type_ids" not in names and model.model_type in SEGMENT_TYPES:
        raise DataError(
            f"{folder}: model_input_names of tokenizer_config.json has no token_type_ids, so that transformers gives "
            "both texts of a pair to this model as the first; megabert does not. Add it, or remove the field."
        )
    return settings


def _refuse_other_settings(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse values that read text in another way, and names that are misspelt ones of settings that count.

    Other unknown names are left alone: transformers' classes ignore them.
    """
    read = [*ALLOWED, *(field.name for field in fields(FolderSettings))]
    for name, value in content.items():
        if name in ALLOWED and value not in ALLOWED[name][0]:
            raise DataError(f"{path}: {name}={value!r}; {ALLOWED[name][1]}. Remove it if the ids are right without it.")
        if name not in (*read, *_UNUSED_NAMES) and (meant := get_close_matches(name, read, n=1, cutoff=0.8)):
            raise DataError(f"{path}: {name} is no setting (did you mean {meant[0]}?). Correct it, or remove it.")


def _class_of(model: _ModelConfig, settings: FolderSettings) -> str | None:
    """Return the class that transformers takes, without ``Fast``; None if no file chooses one."""
    usual = "BertTokenizer" if model.model_type in BERT_TYPES else OTHER_TYPES.get(model.model_type or "")
    name = settings.tokenizer_class or model.tokenizer_class or usual
    if model.model_type in GENERAL_TYPES and name not in OTHER_WORDS:
        return GENERAL_CLASSES[-1]
    return name and name.removesuffix("Fast")


def added_pieces(folder: Path, settings: FolderSettings, written: list[AddedPiece]) -> dict[int, AddedPiece]:
    """Return the pieces that a folder adds to its vocabulary, by id, from the files that transformers reads.

    Args:
        folder: The folder.
        settings: Its settings. ``added_tokens_decoder`` replaces all other files.
        written: The added pieces of its ``tokenizer.json``.
    """
    if settings.added_tokens_decoder is not None:
        return {int(index): piece for index, piece in settings.added_tokens_decoder.items()}
    path = folder / "added_tokens.json"
    ids = read_json(path, dict[PieceText, Id], remedy=REMEDY) if path.exists() else {}
    special = {piece.content for piece in _pieces(settings.extra_special_tokens)} | {*_stated_names(settings)}
    older = {index: AddedPiece(content=name, special=name in special) for name, index in ids.items()}
    return older | {piece.id: piece for piece in written}


def _stated_names(settings: FolderSettings) -> Iterator[str | None]:
    for role in SpecialNames._fields:
        setting = getattr(settings, f"{role}_token")
        yield setting.content if isinstance(setting, AddedPiece) else setting


def special_names(settings: FolderSettings, kind: Kind, vocabulary: dict[str, int]) -> SpecialNames:
    """Return the spelling of special pieces: the settings', or the kind's usual one, or BERT's (as in DeBERTa)."""
    # DeBERTa 2 and 3 are Unigram with BERT's spelling, so the vocabulary decides between the two.
    names = kind.names._asdict()
    for role, bracketed in SpecialNames()._asdict().items():
        if bracketed in vocabulary and names[role] not in vocabulary:
            names[role] = bracketed
        setting = getattr(settings, f"{role}_token") or names[role]
        names[role] = setting.content if isinstance(setting, AddedPiece) else setting
    return SpecialNames(**names)


def refuse_other_class(path: Path, settings: FolderSettings, known: frozenset[str]) -> None:
    """Refuse a vocabulary of another class than the known ones; no class and the general one are fine."""
    if settings.tokenizer_class not in (None, *GENERAL_CLASSES, *known):
        raise DataError(
            f"{path}: tokenizer_class={settings.tokenizer_class}; of this file, {', '.join(sorted(known))} are read. "
            "Give the folder with its tokenizer.json, which AutoTokenizer's save_pretrained writes. If the model was "
            "trained with one of these classes, state that class in tokenizer_config.json."
        )


def text_options(settings: FolderSettings) -> TextOptions:
    """Read BertTokenizer's settings, whose class lower-cases text by default, and strips accents with the case."""
    lower = settings.do_lower_case is not False
    return TextOptions(
        do_lower_case=lower,
        strip_accents=lower if settings.strip_accents is None else settings.strip_accents,
        tokenize_chinese_chars=settings.tokenize_chinese_chars is not False,
    )
