"""The vocabulary of a build from ids: a table of symbols, the tokenizer that made the ids, or their number alone.

Each becomes a tokenizer, so that shards and exported models have one like any other. Without a table its symbols are
the decimal numbers of the ids: the text ``17 4 9`` has the ids 17, 4 and 9.
"""

from functools import lru_cache
from pathlib import Path

from data_prep.config.build import BuildConfig
from data_prep.documents.document_set import tokenizer_of
from megabert.foundation.errors import DataError
from megabert.foundation.files import read_small
from megabert.tokens.tokenization import Tokenizer, word_level_tokenizer
from megabert.tokens.tokenization.special_pieces import SpecialNames
from megabert.tokens.tokenization.tokenizer_kinds import BYTE_BPE

SPELLINGS = (SpecialNames(), BYTE_BPE.names)
"""Spellings by which special symbols of a table are found if no ids are given: BERT's, RoBERTa's."""


def tokenizer_of_ids(config: BuildConfig) -> Tokenizer:
    """Return the tokenizer of a build from ids.

    Raises:
        DataError: The file of symbols cannot be used, or lacks special ones.
    """
    if config.tokenizer is not None:
        return tokenizer_of(Path(config.tokenizer))
    if config.symbols is None:
        return _tokenizer_of_numbers(config.vocab_size, config.special_ids or ())
    symbols = _read_symbols(Path(config.symbols))
    return word_level_tokenizer(symbols, _names(config, symbols), where=config.symbols)


@lru_cache(maxsize=1)  # of millions of ids it takes seconds, and a build asks for it three times
def _tokenizer_of_numbers(vocab_size: int, special_ids: tuple[int, ...]) -> Tokenizer:
    symbols, names = [str(index) for index in range(vocab_size)], SpecialNames()
    for name, index in zip(names, special_ids, strict=True):
        symbols[index] = name
    return word_level_tokenizer(symbols, names, where="vocab_size")


def vocabulary_lines(config: BuildConfig, tokenizer: Tokenizer) -> list[str]:
    """Return the lines of a build's summary on its vocabulary."""
    special = ", ".join(f"{name} {index}" for name, index in zip(tokenizer.names, tokenizer.special_ids, strict=True))
    lines = [f"vocabulary      {tokenizer.vocab_size:,} ids; {special}"]
    if config.tokenizer is None and config.symbols is None:
        lines.append("symbols         none given: the tokenizer, also of exported models, reads the numbers of ids")
    return lines


def _read_symbols(path: Path) -> list[str]:
    """Read a table, a symbol per line."""
    try:
        symbols = [line.rstrip("\r") for line in read_small(path).decode("utf-8-sig").removesuffix("\n").split("\n")]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}. Convert the table to UTF-8.") from None
    first: dict[str, int] = {}
    for index, symbol in enumerate(symbols):
        if not symbol or symbol.split() != [symbol]:
            raise DataError(
                f"{path}: line {index + 1} is {symbol!r}; a symbol is one or more characters without white space, "
                "which separates symbols in a text. Write one symbol per line."
            )
        if first.setdefault(symbol, index) != index:
            raise DataError(
                f"{path}: line {index + 1} repeats the symbol {symbol!r} of line {first[symbol] + 1}. Give each id a "
                "symbol of its own."
            )
    return symbols


def _names(config: BuildConfig, symbols: list[str]) -> SpecialNames:
    """Return the spelling of the special symbols, of the ids that are given or as it is usual."""
    if config.special_ids is not None:
        largest = max(config.special_ids)
        if largest >= len(symbols):
            raise DataError(
                f"{config.symbols}: has {len(symbols):,} symbols, and special_ids names id {largest}. Name lines that "
                "it has, counted from 0."
            )
        return SpecialNames(*(symbols[index] for index in config.special_ids))
    known = set(symbols)
    names = next((names for names in SPELLINGS if known.issuperset(names)), None)
    if names is None:
        raise DataError(
            f"{config.symbols}: does not have all of {' '.join(SPELLINGS[0])} (nor of {' '.join(SPELLINGS[1])}). Add "
            "the missing ones, or say which lines they are: --special-ids PAD UNK CLS SEP MASK, counted from 0."
        )
    return names
