"""The settings of a tokenizer's folder: its class, the spelling of special pieces, what happens to case and accents."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from megabert.foundation.errors import DataError
from megabert.foundation.json_files import read_json
from megabert.tokens.tokenization.backend import Kind, TextOptions
from megabert.tokens.tokenization.special_pieces import SpecialNames

BERT_CLASSES = frozenset(
    f"{name}Tokenizer" for name in ("Bert", "DistilBert", "Electra", "MobileBert", "SqueezeBert", "LayoutLM", "Lxmert")
)
"""Classes whose settings prevail over ``tokenizer.json`` in transformers 5: BertTokenizer under several names."""
BERT_TYPES = frozenset(("bert", "distilbert", "electra", "ernie", "mobilebert", "squeezebert", "layoutlm", "lxmert"))
"""Types of models for which that is the class if none is stated."""
BYTE_BPE_CLASSES = frozenset(f"{name}Tokenizer" for name in ("Roberta", "Deberta", "GPT2", "Bart", "Longformer"))
OTHER_WORDS = {
    "BertJapaneseTokenizer": "cuts words by MeCab or Sudachi first",
    "BertweetTokenizer": "rewrites tweets first",
    "CanineTokenizer": "reads characters",
    "FlaubertTokenizer": "cuts words by Moses first",
    "HerbertTokenizer": "is a BPE with marks at the ends of words",
    "KoBertTokenizer": "is code of its own around SentencePiece",
    "PhobertTokenizer": "reads words that another program has cut",
    "RoFormerTokenizer": "cuts Chinese words by jieba first",
}
"""Classes with another step before WordPiece, byte-level BPE or Unigram, or in its place, and that step."""

GENERAL_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")
"""Classes that take ``tokenizer.json`` as it is."""

Content = TypeVar("Content")


@dataclass(frozen=True)
class _Added:
    """A piece as newer files name it."""

    content: str


@dataclass(frozen=True, kw_only=True)
class FolderSettings:
    """The settings of ``tokenizer_config.json`` and ``special_tokens_map.json`` that count; None if neither says it."""

    tokenizer_class: str | None = None
    pad_token: str | _Added | None = None
    unk_token: str | _Added | None = None
    cls_token: str | _Added | None = None
    sep_token: str | _Added | None = None
    mask_token: str | _Added | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    add_prefix_space: bool | None = None


@dataclass(frozen=True)
class _ModelConfig:
    """The fields of ``config.json`` that choose the class of a tokenizer whose own files name none."""

    tokenizer_class: str | None = None
    model_type: str | None = None


def read_folder_settings(folder: Path) -> FolderSettings:
    """Read the settings of a folder and the class that transformers takes.

    Raises:
        DataError: A file is damaged, or the class cuts words in another way than is known here.
    """
    settings = FolderSettings()
    for path in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
        if path.exists():
            said = vars(read_tokenizer_json(path, FolderSettings)).items()
            settings = replace(settings, **{name: value for name, value in said if value is not None})
    settings = replace(settings, tokenizer_class=_class_of(folder, settings))
    if settings.tokenizer_class in OTHER_WORDS:
        raise DataError(
            f"{folder}: tokenizer_class={settings.tokenizer_class}, which {OTHER_WORDS[settings.tokenizer_class]}; "
            "megabert has WordPiece, byte-level BPE and Unigram on plain text, with other ids. Give another model."
        )
    return settings


def _class_of(folder: Path, settings: FolderSettings) -> str | None:
    """Return the class that transformers takes, without ``Fast``; None if no file chooses one."""
    name, path = settings.tokenizer_class, folder / "config.json"
    if name is None and path.is_file():
        config = read_tokenizer_json(path, _ModelConfig)
        name = config.tokenizer_class or ("BertTokenizer" if config.model_type in BERT_TYPES else None)
    return name and name.removesuffix("Fast")


def special_names(settings: FolderSettings, kind: Kind, vocabulary: dict[str, int]) -> SpecialNames:
    """Return the spelling of special pieces: the settings', or the kind's usual one, or BERT's (as in DeBERTa)."""
    # DeBERTa 2 and 3 are Unigram with BERT's spelling, so the vocabulary decides between the two.
    names = kind.names._asdict()
    for role, bracketed in SpecialNames()._asdict().items():
        if bracketed in vocabulary and names[role] not in vocabulary:
            names[role] = bracketed
        setting = getattr(settings, f"{role}_token") or names[role]
        names[role] = setting.content if isinstance(setting, _Added) else setting
    return SpecialNames(**names)


def refuse_other_class(path: Path, settings: FolderSettings, known: frozenset[str]) -> None:
    """Refuse a vocabulary of another class than the known ones; no class and the general one are fine."""
    if settings.tokenizer_class not in (None, *GENERAL_CLASSES, *known):
        raise DataError(
            f"{path}: tokenizer_class={settings.tokenizer_class}; of this file, {', '.join(sorted(known))} are read. "
            "Give the folder with its tokenizer.json, which AutoTokenizer's save_pretrained writes."
        )


def text_options(settings: FolderSettings) -> TextOptions:
    """Read BertTokenizer's settings, whose class lower-cases text by default, and strips accents with the case."""
    lower = settings.do_lower_case is not False
    return TextOptions(
        do_lower_case=lower,
        strip_accents=lower if settings.strip_accents is None else settings.strip_accents,
        tokenize_chinese_chars=settings.tokenize_chinese_chars is not False,
    )


def read_tokenizer_json(path: Path, cls: type[Content]) -> Content:
    """Read a JSON file of a tokenizer's folder into a type; a DataError names what does not fit."""
    return read_json(path, cls, remedy="Fetch the tokenizer again.")
