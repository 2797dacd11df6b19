"""Special pieces of a tokenizer: the five that BERT's instances need, and spare ones that a text may spell."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import AddedToken

from megabert.foundation.errors import DataError


class SpecialNames(NamedTuple):
    """Spelling of the five special pieces that BERT's instances need; the defaults are BERT's."""

    pad: str = "[PAD]"
    unk: str = "[UNK]"
    cls: str = "[CLS]"
    sep: str = "[SEP]"
    mask: str = "[MASK]"


class SpecialIds(NamedTuple):
    """Ids of the special pieces."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


def find_special_ids(vocabulary: Mapping[str, int], names: SpecialNames, *, where: str) -> SpecialIds:
    """Return the ids of the five special pieces.

    Args:
        vocabulary: Ids by piece.
        names: Spelling of the special pieces.
        where: The file that the vocabulary was read from; errors name it.

    Raises:
        DataError: A special piece is not in the vocabulary.
    """
    missing = [name for name in names if name not in vocabulary]
    if missing:
        raise DataError(
            f"{where}: the vocabulary of {len(vocabulary):,} pieces has no {' '.join(missing)}. Pre-training needs "
            f"{' '.join(names)}. Put each missing piece on a line of its own into the vocabulary (an "
            "[unusedN] line can be renamed), or train a new vocabulary with `megabert-data vocab`."
        )
    return SpecialIds(*(vocabulary[name] for name in names))


def mark_special(backend: tokenizers.Tokenizer, names: SpecialNames) -> None:
    """Register each of the five special pieces as special if the tokenizer's file did not."""
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [name for name in names if name not in known]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in missing])


def spare_names(count: int) -> list[str]:
    """Return the names of so many spare pieces; they are google-research/bert's."""
    return [f"[unused{number}]" for number in range(count)]


def mark_spare(backend: tokenizers.Tokenizer, names: Sequence[str], *, keeps_spaces: bool) -> None:
    """Register spare pieces of the vocabulary, so that transformers takes each as one piece where a text spells it.

    They are registered as special, because a text for pre-training may not have them: special pieces that a text
    spells out are cut there like any other text.

    Args:
        backend: The tokenizer.
        names: The spare pieces.
        keeps_spaces: Whether pieces keep the space before a word; a spare piece then takes the space before it.
    """
    backend.add_special_tokens(
        [AddedToken(name, special=True, normalized=False, lstrip=keeps_spaces) for name in names]
    )


def find_spare_ids(backend: tokenizers.Tokenizer, names: SpecialNames) -> list[int]:
    """Return the ids of added special pieces other than the five: spare ones, or markers such as ``[E1]``."""
    added = backend.get_added_tokens_decoder()
    return [index for index, token in added.items() if token.special and token.content not in names]


def with_ordinary_added(backend: tokenizers.Tokenizer, ids: Sequence[int], *, mask: int) -> tokenizers.Tokenizer:
    """Return a copy in which added pieces with these ids are not special, so that they are found in every text.

    The mask takes the spaces before it, as the word that it replaces would.
    """
    state = json.loads(backend.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["special"] and token["id"] not in ids
        token["lstrip"] = token["lstrip"] or token["id"] == mask
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def without_spelling(backend: tokenizers.Tokenizer, names: Collection[str]) -> tokenizers.Tokenizer:
    """Return a copy of a word-level or Unigram tokenizer in which no text can spell these pieces.

    Its table holds the special pieces like all others, and would find a word such as ``[MASK]``. A word-level table
    keeps the unknown piece, which it knows by name.
    """
    state = json.loads(backend.to_str())
    vocabulary, unknown = state["model"]["vocab"], state["model"].get("unk_token")
    is_table = isinstance(vocabulary, dict)  # else Unigram's list of pieces and scores
    known = vocabulary.keys() if is_table else {piece for piece, _ in vocabulary}
    hidden = {name: f" {name}" for name in names if name in known and name != unknown}  # no word has a space
    state["model"]["vocab"] = (
        {hidden.get(piece, piece): index for piece, index in vocabulary.items()}
        if is_table
        else [(hidden.get(piece, piece), score) for piece, score in vocabulary]
    )
    # An added piece that the table lacks, as DeBERTa's mask, cannot be found there, and others are numbered after it.
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in hidden]
    state["post_processor"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(state))
