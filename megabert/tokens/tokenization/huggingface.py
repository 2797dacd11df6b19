"""Tokenizer folders in Hugging Face form: any of BERT's family is read, and `transformers` gives the same ids."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_path, atomic_write, read_small
from megabert.foundation.full_disk import library_error
from megabert.foundation.json_files import read_json, write_json
from megabert.tokens.tokenization import class_parts, folder_settings
from megabert.tokens.tokenization import tokenizer_kinds as kinds
from megabert.tokens.tokenization.special_pieces import SpecialNames, find_special_ids
from megabert.tokens.tokenization.tokenizer import Tokenizer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)

OTHER_VOCABULARIES = ("*.model", "bpe_encoder.bin", "dict.txt", "bpe.codes")
"""Vocabularies that are recognised, but not read: SentencePiece's, with which ALBERT, DeBERTa 2 and 3 and KoBERT are
published, DeBERTa's of 2020, fairseq's, and PhoBERT's."""
_HUB_NAME = re.compile(r"(?!runs/|models/|data/)[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def is_hub_name(name: str) -> bool:
    """Tell whether a name can be a model's on the Hugging Face Hub, and no path of this machine."""
    return bool(_HUB_NAME.fullmatch(name)) and not Path(name.split("/")[0]).exists()


def download_remedy(name: str | Path) -> str:
    """Return the line that downloads a model of the Hugging Face Hub, for a name that is no folder here, else ""."""
    name = str(name)
    if not is_hub_name(name):
        return ""
    command = f"hf download {name} --local-dir models/{name}"
    return f"Names of the Hugging Face Hub are not read. Download it first (pip install huggingface_hub): {command}"


def load_tokenizer(folder: str | Path, *, reads_spare: bool = False) -> Tokenizer:
    """Read a tokenizer from a Hugging Face folder.

    Args:
        folder: A folder with ``tokenizer.json``; or with ``vocab.txt`` (WordPiece), or ``vocab.json`` and
            ``merges.txt`` (byte-level BPE), and an optional ``tokenizer_config.json``.
        reads_spare: Whether a spare piece (``[unused0]``) or another added special piece (``[E1]``) is taken
            as that piece if a text spells it, as transformers does. Text for pre-training is read without.

    Returns:
        A tokenizer with the ids that `transformers` gives for the folder.

    Raises:
        DataError: There is no tokenizer, or one of another kind, a file is damaged, or a special piece is missing.
    """
    folder = Path(folder)
    settings = folder_settings.read_folder_settings(folder)
    has_own = (folder / "tokenizer.json").exists()
    others = () if has_own else (path for pattern in OTHER_VOCABULARIES for path in sorted(folder.glob(pattern)))
    other = next(iter(others), None)  # its vocab.txt would have other ids
    for name, read in _READERS.items():
        if (folder / name).exists() and (name != "vocab.txt" or other is None):
            with kinds.panics_as_errors(str(folder / name)):
                backend, kind = read(folder / name, settings)
                names = folder_settings.special_names(settings, kind, vocabulary := backend.get_vocab())
                special_ids = find_special_ids(vocabulary, names, where=str(folder / name))
                class_parts.set_template(backend, settings, names, special_ids, folder / name)
                return Tokenizer(backend, names=names, where=str(folder / name), reads_spare=reads_spare)
    remedy = (
        f"{other.name} has no tokenizer.json next to it; transformers, with sentencepiece and protobuf, makes it: "
        f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        if other
        else download_remedy(folder) or "Give a Hugging Face folder, or train a vocabulary with `megabert-data vocab`."
    )
    sought = "tokenizer.json" if other else ", ".join(_READERS)
    raise DataError(f"{folder}: no tokenizer there; looked for {sought}. {remedy}")


def word_level_tokenizer(symbols: Sequence[str], names: SpecialNames, *, where: str) -> Tokenizer:
    """Return a tokenizer that looks symbols up in a table.

    Args:
        symbols: Symbols in the order of their ids, the special ones among them.
        names: Spelling of the special pieces.
        where: The file that they come from, for messages.
    """
    return Tokenizer(kinds.build_word_level(symbols, names), names=names, where=where)


def save_huggingface(tokenizer: Tokenizer, folder: str | Path, *, model_max_length: int = 512) -> None:
    """Write the tokenizer's files, so that ``AutoTokenizer.from_pretrained(folder)`` gives the same ids.

    The class is BertTokenizer if that class can express the normaliser, otherwise PreTrainedTokenizerFast, which
    takes ``tokenizer.json`` as it is (transformers 5 rebuilds a BertTokenizer from its settings alone).

    Args:
        tokenizer: The tokenizer to write.
        folder: The folder, created if it is missing; files of the same names are replaced.
        model_max_length: Longest sequence that the model takes, special pieces included.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    options = kinds.options_of(backend)
    if options is not None:
        # Built again from its parts, so that equal tokenizers give equal files, whatever folder they were read from.
        added = [token for token in backend.get_added_tokens_decoder().values() if token.content not in tokenizer.names]
        model = json.loads(tokenizer.to_json())["model"]
        backend = kinds.build_backend(
            model["vocab"], options, tokenizer.names, longest_word=model["max_input_chars_per_word"]
        )
        backend.add_tokens(added)
    settings: dict[str, Any] = {f"{role}_token": name for role, name in tokenizer.names._asdict().items()}
    is_bert_class = (
        options and not options.compose and backend.model.max_input_chars_per_word == kinds.MAX_WORD_CHARACTERS
    )
    config = {
        "tokenizer_class": "BertTokenizer" if is_bert_class else "PreTrainedTokenizerFast",
        "model_max_length": model_max_length,
        "added_tokens_decoder": {str(token.pop("id")): token for token in json.loads(backend.to_str())["added_tokens"]},
        **settings,
    }
    if options is not None:
        config |= {key: value for key, value in asdict(options).items() if key != "compose"}
    with atomic_path(folder / "tokenizer.json") as temporary, _naming_lack_of_space():
        backend.save(str(temporary))
    write_json(folder / "tokenizer_config.json", config, ensure_ascii=False, sort_keys=True)
    write_json(folder / "special_tokens_map.json", settings, ensure_ascii=False, sort_keys=True)
    if tokenizer.kind is kinds.WORDPIECE:
        atomic_write(folder / "vocab.txt", "".join(f"{piece}\n" for piece in tokenizer.pieces))
    if tokenizer.kind is kinds.BYTE_BPE:
        with _naming_lack_of_space():
            saved = backend.model.save(str(folder), "new")  # new-vocab.json and new-merges.txt
        for name in saved:
            os.replace(name, folder / Path(name).name.removeprefix("new-"))


@contextmanager
def _naming_lack_of_space() -> Iterator[None]:
    """Turn an error of the system, of which `tokenizers` gives the words alone, into one by which it is known."""
    try:
        yield
    except Exception as error:
        raise library_error(error) or error from error


def check_links(tokenizer_dir: Path) -> None:
    """Refuse a tokenizer some of whose files are links to files elsewhere: copies of these would be published.

    Links within the folder are fine, and so are links to Hugging Face's cache, whose folders are made of them.

    Raises:
        DataError: There is such a link.
    """
    folder = Path(os.path.realpath(tokenizer_dir))  # Path.resolve fails at a loop of links
    roots = [folder, *([folder.parents[1] / "blobs"] if folder.parent.name == "snapshots" else [])]
    for name in TOKENIZER_FILES:
        target = Path(os.path.realpath(folder / name))
        if not any(target.is_relative_to(root) for root in roots):
            raise DataError(
                f"{tokenizer_dir / name}: is a link to {target}, outside of its folder, and its content would be "
                "copied with the tokenizer. Put the file itself there, or remove the link."
            )


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of a tokenizer that a folder has."""
    return [path for name in TOKENIZER_FILES if (path := folder / name).is_file()]


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy a tokenizer's files, and no others, into a folder that is there.

    Raises:
        DataError: A file is a link to a place outside of its folder.
    """
    check_links(source)
    for path in tokenizer_files(source):
        atomic_write(folder / path.name, read_small(path))


def _read_wordpiece(path: Path, settings: folder_settings.FolderSettings) -> tuple[tokenizers.Tokenizer, kinds.Kind]:
    folder_settings.refuse_other_class(path, settings, folder_settings.BERT_CLASSES)
    vocabulary, added = _read_vocabulary(path), folder_settings.added_pieces(path.parent, settings, [])
    names = folder_settings.special_names(settings, kinds.WORDPIECE, vocabulary)
    find_special_ids(vocabulary, names, where=str(path))  # the template looks them up
    _check_added(path, vocabulary, added)
    return _add(
        kinds.build_backend(vocabulary, folder_settings.text_options(settings), names), added, settings
    ), kinds.WORDPIECE


def _read_byte_bpe(path: Path, settings: folder_settings.FolderSettings) -> tuple[tokenizers.Tokenizer, kinds.Kind]:
    folder_settings.refuse_other_class(path, settings, folder_settings.BYTE_BPE_CLASSES)
    vocabulary = read_json(path, dict[folder_settings.PieceText, folder_settings.Id], remedy=folder_settings.REMEDY)
    merges, added = path.with_name("merges.txt"), folder_settings.added_pieces(path.parent, settings, [])
    if not merges.is_file():
        raise DataError(f"{path}: there is no merges.txt next to it. Fetch the folder again.")
    # A merge a line, "left right", in the order in which they were learned, which is the order of application.
    lines = [line for line in read_small(merges).decode().splitlines() if not line.startswith("#version")]
    names = folder_settings.special_names(settings, kinds.BYTE_BPE, vocabulary)
    find_special_ids(vocabulary, names, where=str(path))
    _check_added(path, vocabulary, added)
    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines if line)]
    try:
        backend = kinds.build_byte_bpe(vocabulary, pairs, names, add_prefix_space=settings.add_prefix_space is True)
    except Exception as error:  # tokenizers raises bare Exception, such as for a merge of pieces that it does not know
        raise DataError(f"{merges}: `tokenizers` cannot read it: {error}. Fetch the folder again.") from error
    return _add(backend, added, settings), kinds.BYTE_BPE


def _read_backend(path: Path, settings: folder_settings.FolderSettings) -> tuple[tokenizers.Tokenizer, kinds.Kind]:
    text, checked = folder_settings.read_tokenizer_json(path)
    vocab, added = checked.model.vocab, folder_settings.added_pieces(path.parent, settings, checked.added_tokens)
    vocabulary = vocab if isinstance(vocab, dict) else {piece: index for index, (piece, _) in enumerate(vocab)}
    own = {piece.id: piece for piece in checked.added_tokens}
    for pieces in (own, added) if added != own else (own,):
        _check_added(path, vocabulary, pieces)
    name = settings.tokenizer_class
    classes = {
        kinds.WORDPIECE: folder_settings.BERT_CLASSES,
        kinds.BYTE_BPE: folder_settings.BYTE_BPE_CLASSES,
        kinds.UNIGRAM: folder_settings.UNIGRAM_CLASSES,
    }
    prevailing = next((kind for kind, members in classes.items() if name in members), None)
    if prevailing and any(piece.id not in added for piece in checked.added_tokens):
        text = json.dumps(json.loads(text) | {"added_tokens": []})  # transformers takes the vocabulary alone
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises bare Exception
        raise DataError(f"{path}: `tokenizers` cannot read it: {error}. Fetch the file again.") from error
    if prevailing and not isinstance(backend.model, prevailing.model):
        raise DataError(
            f"{path}: model.type is {type(backend.model).__name__}, but tokenizer_class={name} is of "
            f"{prevailing.model.__name__}. Fetch the tokenizer's files again, or correct the class."
        )
    # transformers lets the settings of these classes prevail over tokenizer.json: what happens to text before its words
    # are cut into pieces, and the longest word.
    if prevailing is kinds.WORDPIECE:
        backend.normalizer, backend.pre_tokenizer = (
            kinds.build_normalizer(folder_settings.text_options(settings)),
            kinds.BERT_WORDS,
        )
        backend.model.max_input_chars_per_word = kinds.MAX_WORD_CHARACTERS
    elif prevailing is kinds.BYTE_BPE:
        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.add_prefix_space is True)
    elif prevailing is kinds.UNIGRAM:
        unknown = folder_settings.special_names(settings, prevailing, vocabulary).unk
        class_parts.rebuild_unigram(backend, settings, checked, vocabulary.get(unknown, 0))
    elif name not in folder_settings.GENERAL_CLASSES:
        _refuse_contradiction(path, settings, _written_settings(backend, checked))
    return _add(backend, added, settings), kinds.kind_of(backend, str(path))


def _written_settings(backend: tokenizers.Tokenizer, checked: folder_settings.TokenizerJson) -> Mapping[str, bool]:
    """Return the treatment of text in a ``tokenizer.json``, in the names of ``tokenizer_config.json``."""
    options = kinds.options_of(backend)
    if options is not None:
        return {name: value for name, value in asdict(options).items() if name != "compose"}
    steps = folder_settings.steps_of(checked.normalizer) | folder_settings.steps_of(checked.pre_tokenizer)
    prefix = {"add_prefix_space": bool(steps["ByteLevel"].get("add_prefix_space"))} if "ByteLevel" in steps else {}
    return {"do_lower_case": "Lowercase" in steps, **prefix}


def _refuse_contradiction(path: Path, settings: folder_settings.FolderSettings, written: Mapping[str, bool]) -> None:
    stated = (
        folder_settings.text_options(settings) if settings.tokenizer_class in folder_settings.OWN_CLASSES else settings
    )
    for name, value in written.items():
        if getattr(stated, name, None) not in (None, value):
            raise DataError(
                f"{path}: {name} is {value}, but {getattr(stated, name)} in tokenizer_config.json, and "
                f"tokenizer_class={settings.tokenizer_class} does not say which counts. Make the two equal, or state "
                "tokenizer_class: BertTokenizer to take tokenizer_config.json's."
            )


def _check_added(where: Path, vocabulary: Mapping[str, int], added: Mapping[int, folder_settings.AddedPiece]) -> None:
    """Refuse an added piece with another id than `tokenizers` would give it, without a word."""
    new: dict[str, int] = {}
    for index, piece in sorted(added.items()):
        known = vocabulary.get(piece.content)
        wanted = new.setdefault(piece.content, len(vocabulary) + len(new)) if known is None else known
        if index != wanted:
            has = "the vocabulary has it as" if piece.content in vocabulary else "the next free id is"
            raise DataError(
                f"{where}: the added piece {piece.content!r} has the id {index:,}, but {has} {wanted:,}. Correct it in "
                "tokenizer.json, tokenizer_config.json (added_tokens_decoder) or added_tokens.json, or remove it."
            )


def _add(
    backend: tokenizers.Tokenizer,
    added: Mapping[int, folder_settings.AddedPiece],
    settings: folder_settings.FolderSettings,
) -> tokenizers.Tokenizer:
    """Add pieces to a tokenizer, in the order of their ids, then special pieces without a number."""
    known = {piece.content for piece in added.values()} | {
        str(one) for one in backend.get_added_tokens_decoder().values()
    }
    extra = [piece for piece in settings.extra_pieces() if piece.content not in known]
    backend.add_tokens([piece.as_token() for _, piece in sorted(added.items())] + [piece.as_token() for piece in extra])
    return backend


_READERS = {"tokenizer.json": _read_backend, "vocab.txt": _read_wordpiece, "vocab.json": _read_byte_bpe}
"""Readers by file name, in order of preference: the first of these files that a folder has is read."""


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        lines = read_small(path).decode().split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}. Convert the vocabulary to UTF-8.") from error
    if lines and not lines[-1]:
        lines.pop()
    # As transformers 5 and google-research/bert read it; a piece of blanks alone stays, since no text has it. A piece
    # that is there twice has its last id; its earlier row gets a name with a space, which no word has.
    vocabulary: dict[str, int] = {}
    for index, line in enumerate(lines):
        piece = line.rstrip() or line
        if piece in vocabulary:
            vocabulary[f"{piece} {vocabulary[piece]}"] = vocabulary[piece]
        vocabulary[piece] = index
    return vocabulary
