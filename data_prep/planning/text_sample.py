"""A look at some of the text before a build and its vocabulary: about how many tokens and documents it has."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_prep.checks.corpus_counts import needed, require_enough
from data_prep.clean.cleaner import Cleaner
from data_prep.clean.grouped_hashes import text_hash
from data_prep.config.build import BuildConfig
from data_prep.config.cleaning import CORPUS_RULES, RULES
from data_prep.documents.document_set import hash_bytes, tokenizer_of
from data_prep.execution.records import Problems
from data_prep.extract.ids import IdChecker, id_documents
from data_prep.extract.inputs import plan_chunks
from data_prep.extract.opening import InputChunk, InputFile
from data_prep.identification.identifier import keeps_language, require_identifier
from data_prep.steps.document_reader import READERS, DocumentReader, ExtractTask
from data_prep.vocabulary.symbols import tokenizer_of_ids
from megabert.foundation.errors import ConfigError, MegabertError
from megabert.tokens.tokenization.training import DEFAULT_VOCAB_SIZE

LOOKS, DOCUMENTS_PER_LOOK, CHARACTERS_PER_LOOK = 16, 100, 200_000
"""Places of the input that are looked at, and documents or characters there, about."""
ENGLISH_DOCUMENT_BYTES = 3000
TOKENS_PER_CHARACTER = {"han": 1.0, "kana": 0.6, "hangul": 0.4, "other": 1 / 4.76}
"""With 30,522 pieces, by script: English web text has 4.76 characters per token, Korean 7 bytes per token. Han
characters are tokens of their own in WordPiece. Kana are assumed."""
VOCABULARY_EXPONENT = 0.13
"""Bytes per token grow by this power of the vocabulary's size: 3.0, 4.0 and 4.7 with 2,048, 8,192 and 30,522 pieces in
Wikipedia's English, 3.9, 5.8 and 7.0 in Korean."""
Item = TypeVar("Item")
_BLOCKS = {"han": ((0x3400, 0x9FFF), (0x20000, 0x3FFFF)), "kana": ((0x3040, 0x30FF),), "hangul": ((0xAC00, 0xD7AF),)}


@dataclass(frozen=True, kw_only=True)
class TextSample:
    """Documents that were looked at."""

    document_bytes: NDArray[np.float64]
    """UTF-8 bytes of each."""
    document_tokens: NDArray[np.float64]
    """Tokens of each, about."""
    holds_ids: bool = False
    """Whether they are lists of ids. Their bytes are counted as in the file."""

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text for each token."""
        return float(self.document_bytes.sum() / self.document_tokens.sum())

    def short_share(self, least_tokens: int) -> tuple[float, float]:
        """Return the share of documents of fewer tokens, and their share of the text."""
        is_short = self.document_tokens < least_tokens
        return float(is_short.mean()), float(self.document_tokens[is_short].sum() / self.document_tokens.sum())


class RuleEffect(NamedTuple):
    """Losses to one cleaning rule if no other runs."""

    documents: int
    """Documents that it drops, or leaves nothing of."""
    characters: int
    """Characters that it drops, of these and of other documents."""
    matches: int
    """Places that it masks."""
    example: str
    """The first place, with its text; "" if there is none."""


class RuleTrial(NamedTuple):
    """Losses of a sample of documents to cleaning rules."""

    documents: int
    """Documents of the sample, without documents that are empty or that no build could cut into sentences."""
    characters: int
    kept: int
    """Documents of which the chosen rules together keep some text."""
    effects: dict[str, RuleEffect]
    """Effect of each rule, in the order in which rules run."""


def english(config: BuildConfig) -> TextSample:
    """Return the figures of English, for text that is not there yet."""
    size = float(ENGLISH_DOCUMENT_BYTES)
    tokens = size * TOKENS_PER_CHARACTER["other"] / _vocabulary_factor(config)
    return TextSample(document_bytes=np.array([size]), document_tokens=np.array([tokens]))


def sample_text(config: BuildConfig, files: Sequence[InputFile]) -> TextSample:
    """Look at the first documents of some places, spread over the input; English text if nothing can be read there.

    Args:
        config: Says how documents are read and cleaned, and gives the tokenizer or the size of the vocabulary.
        files: The input.
    """
    look: Callable[[InputChunk], Iterable[Any]] = partial(_look_at_texts, config)
    if config.holds_ids:
        look = partial(_look_at_ids, IdChecker(tokenizer_of_ids(config)))
    documents: list[Any] = []
    with suppress(MegabertError):  # the build will name what cannot be read, with what helps
        for chunk in _spread(plan_chunks(_spread(files), config.chunk_bytes)):
            documents += look(chunk)
    sizes, tokens = np.array(documents if config.holds_ids else _sizes(documents, config), float).reshape(-1, 2).T
    if not tokens.any():
        return english(config)
    return TextSample(document_bytes=sizes, document_tokens=tokens, holds_ids=config.holds_ids)


def _look_at_ids(checker: IdChecker, chunk: InputChunk) -> Iterator[tuple[float, float]]:
    """Yield bytes, roughly as they are in the file, and tokens of the first lists of a place."""
    for sides in islice(id_documents(chunk, checker, Problems(is_strict=False)), DOCUMENTS_PER_LOOK):
        ids = np.concatenate(sides)
        # JSON writes a digit or more, a comma and, usually, a space.
        digits = float(np.log10(ids.clip(min=1)).astype(int).sum()) + 3 * len(ids)
        yield digits if chunk.file.format == "jsonl" else float(ids.nbytes), len(ids)


def _look_at_texts(config: BuildConfig, chunk: InputChunk) -> Iterator[str]:
    """Yield the first documents of a place, as they are cleaned."""
    with suppress(MegabertError):  # then only the texts before the unreadable one count
        paragraphs = DocumentReader(ExtractTask(chunk, 0, config, Path())).documents()
        yield from (text for text in _first(map("\n".join, paragraphs), len) if text)


def _sizes(texts: list[str], config: BuildConfig) -> list[tuple[int, float]]:
    """Return bytes and tokens, about, of each document."""
    # All at once: for few texts a tokenizer does not use its compiled loops.
    tokens = (
        np.diff(tokenizer_of(Path(config.tokenizer)).encode_flat(texts)[1])
        if config.tokenizer
        else [_tokens(text, config) for text in texts]
    )
    return list(zip([len(text.encode()) for text in texts], tokens, strict=True))


def try_rules(config: BuildConfig, files: Sequence[InputFile]) -> RuleTrial:
    """Try each cleaning rule alone on the documents of some places, spread over the input; nothing is written.

    Args:
        config: Says how documents are read, and has the bounds of the rules.
        files: The input.

    Raises:
        ConfigError: The input is ids, which no rule reads, or a language to keep cannot be identified.
        DataError: A file cannot be read at all; documents that cannot be are left out.
    """
    if config.holds_ids:
        raise ConfigError(
            "stats --dry-run tries rules that read text, and format ids has none. `megabert-data build --dry-run` "
            "looks at ids; duplicate_documents, the one rule that they can have, is counted by a build."
        )
    rules = [rule for rule in dict.fromkeys((*RULES, *config.clean.rules)) if rule not in CORPUS_RULES]
    if not (config.clean.languages or "language" in config.clean.rules):
        rules.remove("language")  # nobody has said which languages to keep
    else:  # tried even if it is not chosen, and a language that is never identified would seem to be all dropped
        require_identifier(replace(config, clean=replace(config.clean, rules=("language",))))
    problems: dict[str, Problems] = {rule: Problems() for rule in rules}
    cleaners: dict[int, dict[str, Cleaner]] = {}  # by the source, for sources differ in the languages to keep
    documents = characters = kept = 0
    dropped = Counter[str]()
    for source, origin, text in _raw_documents(config, files):
        if source not in cleaners:
            cleaners[source] = _cleaners(config, source, rules, problems)
        if not cleaners[source]["none"].clean(text, origin):
            continue
        documents, characters = documents + 1, characters + len(text)
        for rule in rules:
            dropped[rule] += not cleaners[source][rule].clean(text, origin)
        kept += bool(cleaners[source]["chosen"].clean(text, origin))
    effects = {}
    for rule in rules:
        # Of several counts, such as mojibake that is repaired or dropped, the sum is shown.
        counts = (count for of_source in cleaners.values() for count in of_source[rule].counts.values())
        amounts = sum(counts, Counter[str]())
        example = next((texts[0] for texts in problems[rule].examples.values()), "")
        effects[rule] = RuleEffect(dropped[rule], amounts["characters"], amounts["matches"], example)
    return RuleTrial(documents, characters, kept, effects)


def _cleaners(
    config: BuildConfig, source: int, rules: Sequence[str], problems: Mapping[str, Problems]
) -> dict[str, Cleaner]:
    """Return a cleaner of a source's documents for each rule alone, for no rule, and for the chosen rules together."""
    tried: dict[str, tuple[str, ...]] = {rule: (rule,) for rule in rules}
    tried |= {"none": (), "chosen": config.clean.rules}
    is_kept = keeps_language(config, source) if "language" in rules else None
    return {
        name: Cleaner(replace(config.clean, rules=own), problems.get(name, Problems()), keeps_language=is_kept)
        for name, own in tried.items()
    }


def _raw_documents(config: BuildConfig, files: Sequence[InputFile]) -> Iterator[tuple[int, str, str]]:
    """Yield the source, the place and the text of documents as they are in the files."""
    for chunk in _spread(plan_chunks(_spread(files), config.chunk_bytes)):
        documents = READERS[chunk.file.format](chunk, Problems(is_strict=False))
        for position, text in _first(documents, lambda document: len(document[1])):
            yield chunk.file.source, f"{chunk.file.path} {position}", text


def foresee_enough(config: BuildConfig, chunks: Sequence[InputChunk]) -> None:
    """Refuse a corpus that is too small before it is extracted; reads until there are enough documents.

    Args:
        config: Names the share and the objective, and how documents are read.
        chunks: All parts of the input.

    Raises:
        DataError: It is too small, or cannot be read.
    """
    different, several = set[int](), set[int]()
    wanted = needed(config) * (2 if config.validation_share else 1)
    looked_at = _ids_looked_at(config, chunks) if config.holds_ids else _texts_looked_at(config, chunks)
    for number, (name, is_several) in enumerate(looked_at):
        own = name if config.validation_share else number  # copies of a text count if none is held out
        different.add(own)
        if is_several:
            several.add(own)
        if len(several) == wanted:
            return
    require_enough(config, len(different), len(several))


def _ids_looked_at(config: BuildConfig, chunks: Sequence[InputChunk]) -> Iterator[tuple[int, bool]]:
    """Yield a hash of each document, and that it gives an instance."""
    checker, problems = IdChecker(tokenizer_of_ids(config)), Problems(is_strict=config.max_bad_share == 0)
    for chunk in chunks:
        for sides in filter(lambda sides: any(map(len, sides)), id_documents(chunk, checker, problems)):
            yield hash_bytes(np.concatenate(sides).astype(np.int64).tobytes()), True


def _texts_looked_at(config: BuildConfig, chunks: Sequence[InputChunk]) -> Iterator[tuple[int, bool]]:
    """Yield a hash of each document, and whether it has the sentences that an instance needs."""
    for number, chunk in enumerate(chunks):
        reader = DocumentReader(ExtractTask(chunk, number, config, Path()))
        for paragraphs in filter(None, reader.documents()):
            yield text_hash(paragraphs), config.objective == "none" or len(reader.sentences(paragraphs)) > 1


def _first(documents: Iterable[Item], size: Callable[[Item], int]) -> Iterator[Item]:
    """Yield the first documents, until there are enough of them or of their characters."""
    characters = 0
    for document in islice(documents, DOCUMENTS_PER_LOOK):
        yield document
        characters += size(document)
        if characters >= CHARACTERS_PER_LOOK:
            break


def _spread(items: Sequence[Item]) -> list[Item]:
    """Return some items of a list, evenly spaced."""
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, LOOKS).astype(int))] if items else []


def _tokens(text: str, config: BuildConfig) -> float:
    """Return the approximate number of tokens of a text."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    counts = {
        script: sum(int(((codes >= first) & (codes <= last)).sum()) for first, last in blocks)
        for script, blocks in _BLOCKS.items()
    }
    counts["other"] = len(codes) - sum(counts.values())
    factor = _vocabulary_factor(config)
    return sum(
        count * TOKENS_PER_CHARACTER[script] / (1.0 if script == "han" else factor) for script, count in counts.items()
    )


def _vocabulary_factor(config: BuildConfig) -> float:
    return float(((config.vocab_size - config.spare_pieces) / DEFAULT_VOCAB_SIZE) ** VOCABULARY_EXPONENT)
