"""The configuration of a build, from ``--config`` files and the flags of ``megabert-data build``."""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from data_prep.config.cleaning import CleanConfig
from data_prep.config.ids import require_usable_ids
from data_prep.config.languages import AUTO, require_language_or_auto
from megabert.foundation.errors import without_secrets
from megabert.settings.config import loading
from megabert.settings.config.fields import STRICT, field_table, refuse
from megabert.settings.config.needs import Need, Needs
from megabert.tokens.tokenization import Pieces

MAX_SOURCES = 65_536
"""Sources of a build at most: their numbers are stored in 16 bits."""
MAX_LENGTH = 65_535
LEAST_PIECES: dict[Pieces, int] = {"wordpiece": 64, "byte_bpe": 261, "unigram": 64}
"""Pieces of a vocabulary at least, spare ones not counted; byte-level BPE has 256 bytes and 5 special pieces."""
MAX_DOCUMENT = 2**25
"""More tokens than a document can have: a larger one than 32 MiB is left out."""
Id = Annotated[int, Field(ge=0, lt=2_000_000)]
Language = Annotated[str, AfterValidator(require_language_or_auto)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SourceConfig:
    """One source of text."""

    input: str
    """Path, glob or URL of the files. Every match is read."""
    name: str | None = None
    """Name of the source in counts; by default the glob."""
    format: Literal["auto", "text", "book", "jsonl", "parquet", "arrow", "wikipedia", "ids"] = "auto"
    """Format of the files: text (documents separated by blank lines), book (one document a file), jsonl (one JSON
    object a line), parquet, arrow, wikipedia (a dump), ids (lists of ids instead of text, in JSON Lines, Parquet, Arrow
    or numpy's arrays), or auto, which goes by the file name."""
    encoding: str = "utf-8"
    """Encoding of the text, which is decoded strictly: a byte that does not fit is an error."""
    field: str | None = None
    """Key or column that holds the text, or the ids, in JSON Lines, Parquet and Arrow: by default text or input_ids."""
    second_field: str | None = None
    """Format ids: key or column that holds the ids of B, for pairs of two lists."""
    language: Language | None = None
    """Language of this source's text: a code as for the build's language, which is the default, or auto."""
    weight: float = Field(1.0, gt=0, le=1000)
    """How often each training document is used: 2 twice, 0.5 every other one, chosen by a hash of its text."""

    @property
    def title(self) -> str:
        """Name of the source in counts."""
        return self.name or without_secrets(self.input)

    @property
    def key(self) -> str:
        """Key or column that is read."""
        return self.field or ("input_ids" if self.format == "ids" else "text")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BuildConfig:
    """What to build; together with the inputs it determines every byte of the shards."""

    sources: tuple[SourceConfig, ...] = Field(min_length=1, max_length=MAX_SOURCES)
    """Sources of the text, each counted on its own."""
    clean: CleanConfig = CleanConfig()
    """Cleaning rules and their bounds."""
    max_bad_share: float = Field(0.0, ge=0, le=1)
    """Share of the documents, and of the bytes, that may be unreadable: wrong bytes, no JSON, the end of a file that is
    cut or damaged. At 0 the first one ends the build."""
    language: Language = "en"
    """Language of the text for the sentence splitter: an ISO 639-1 code, the code of a Wikipedia, or auto, which
    identifies the language of each document. Sources may have their own."""
    language_model: str | None = None
    """File of a fastText model that identifies languages (lid.176, GlotLID, OpenLID); without it py3langid does."""
    tokenizer: str | None = None
    """Folder of an existing tokenizer in Hugging Face form; without it a vocabulary is trained."""
    symbols: str | None = None
    """Format ids: file with the vocabulary, a symbol per line; the first line is id 0."""
    special_ids: tuple[Id, Id, Id, Id, Id] | None = None
    """Format ids: ids of padding, of unknown symbols, of [CLS], [SEP] and [MASK], in this order; by default the lines
    of symbols that spell them as BERT or RoBERTa do. Without symbols, vocab_size says how many ids there are."""
    pieces: Pieces = "wordpiece"
    """Kind of vocabulary to train: wordpiece (BERT, ELECTRA), byte_bpe (RoBERTa, DeBERTa) or unigram (DeBERTa 3)."""
    vocab_size: int = Field(30_522, ge=6, le=2_000_000)
    """Pieces of the vocabulary to train, special and spare ones counted, 64 at least (byte_bpe: 261). Format ids:
    number of ids."""
    spare_pieces: int = Field(0, ge=0, le=2_000_000)
    """Pieces of the vocabulary to train that no text is cut into, named [unused0] and on: free for markers in a later
    fine-tuning. Their ids begin at 5."""
    uncased: bool = False
    """Whether the vocabulary to train lower-cases and drops accents."""
    lengths: tuple[int, ...] = (128, 512)
    """Tokens of the longest instances, [CLS] and [SEP] counted; one set of shards is built for each length."""
    objective: Literal["nsp", "sop", "none"] = "nsp"
    """Objective in addition to masked tokens: nsp (next sentence), sop (sentence order), or none (full sentences in one
    segment)."""
    pairing: Literal["balanced", "google"] = "balanced"
    """How pairs are made: balanced (even labels, which the length does not betray) or google (the original's
    distribution)."""
    masking: Literal["static", "dynamic"] = "static"
    """When tokens are masked: static (in the shards) or dynamic (drawn again in every epoch)."""
    mask_unit: Literal["token", "whole_word", "span"] = "token"
    """Unit that is masked as a whole: single tokens, all pieces of a word, or runs of words (SpanBERT, Joshi et al.
    2020)."""
    dupe_factor: int = Field(5, ge=1, le=10_000)
    """Passes over the training documents, each with other pairs and masks. With objective none and dynamic masking
    there is neither, and the commands make 1 unless another number is given."""
    short_seq_prob: float = Field(0.1, ge=0, le=1)
    """Share of instances that are made shorter on purpose, so that the model meets short inputs as well."""
    masked_lm_prob: float = Field(0.15, gt=0, lt=1)
    """Share of the tokens to predict."""
    max_predictions_per_seq: tuple[int, ...] | None = None
    """Most predictions in an instance, one number for each length; by default masked_lm_prob times the length, rounded
    up (20 at 128)."""
    min_tokens: tuple[int, ...] | None = None
    """Tokens that a document needs to give instances, one number for each length; shorter ones are left out of that
    length and counted. Long instances want long documents: lengths [1024, 8192], min_tokens [0, 4096]."""
    exclude: tuple[str, ...] = ()
    """Folders of finished builds. Their documents are left out, held-out ones among them, and with the cleaning rule
    near_duplicates near copies of these."""
    validation_share: float = Field(0.02, ge=0, lt=1)
    """Share of the documents that are held out, chosen by a hash of their text."""
    seed: int = Field(12_345, ge=0, lt=2**63)
    """Seed of all random draws: pairs, lengths, masks and order."""
    buckets: int | None = Field(None, ge=1, le=65_536)
    """Parts that the shuffled documents are stored in; by default one for 5 million tokens, fewer if documents are
    few."""
    shard_mib: float = Field(256.0, ge=0.01, le=16_384)
    """Approximate size of a shard. A corpus below some gigabytes gets smaller shards of one bucket each, so that many
    workers share them; a very large one gets larger shards, so that no length has more than 50,000."""
    chunk_mib: float = Field(8.0, ge=1e-4, le=65_536)
    """Size of the chunks that input files are read in, as stored; small inputs are cut finer."""

    @model_validator(mode="after")
    def _fits_together(self) -> "BuildConfig":
        refuse(self._impossible_vocabulary(), self._unusable_lengths(), self._unusable_languages())
        require_usable_ids(self)
        return self

    def _impossible_vocabulary(self) -> Iterator[str]:
        if self.uncased and self.pieces != "wordpiece":
            yield f"uncased: a {self.pieces} vocabulary keeps case and accents; train wordpiece instead"
        left, least = self.vocab_size - self.spare_pieces, LEAST_PIECES[self.pieces]
        if left < least and (self.spare_pieces or not (self.holds_ids or self.tokenizer)):
            spared = f" beside spare_pieces={self.spare_pieces}" if self.spare_pieces else ""
            yield (
                f"vocab_size={self.vocab_size}: leaves {max(left, 0)} pieces for the text{spared}, and a {self.pieces} "
                f"vocabulary needs {least} or more; raise vocab_size to {self.spare_pieces + least} or more"
            )

    def _unusable_lengths(self) -> Iterator[str]:
        if not self.lengths or len(set(self.lengths)) != len(self.lengths):
            yield f"lengths={self.lengths}: give one or more lengths, each once"
        if min(self.lengths) < 16 or max(self.lengths) > MAX_LENGTH:
            yield f"lengths={self.lengths}: allowed are 16 to {MAX_LENGTH} tokens"
        for name, low, high in (("max_predictions_per_seq", 1, MAX_LENGTH), ("min_tokens", 0, MAX_DOCUMENT)):
            counts = getattr(self, name)
            if counts is not None and (len(counts) != len(self.lengths) or min(counts) < low or max(counts) > high):
                yield f"{name}={counts}: give one number from {low} to {high} for each of {self.lengths}"
        if any(self.min_tokens or ()) and self.pairing == "google":
            yield (
                f"min_tokens={self.min_tokens}: pairing=google takes random Bs from all documents, long or not; use "
                "balanced"
            )
        if self.objective != "nsp" and self.pairing == "google":
            yield f"pairing=google is defined for objective=nsp, not {self.objective}; use balanced"

    def _unusable_languages(self) -> Iterator[str]:
        is_kept = "language" in self.clean.rules
        for number, source in enumerate(self.sources):
            if source.format == "ids" and (source.language or self.language == AUTO):
                name = f"sources.{number}.language={source.language}" if source.language else f"language={AUTO}"
                yield f"{name}: ids have no text whose language could matter; leave it out"
            if is_kept and not self.kept_languages(number):
                yield (
                    f"clean.rules has language, and sources.{number} is of language {AUTO}, but clean.languages names "
                    "none; say which to keep, such as [en, de]"
                )
        if self.language_model is not None and not self.identifies_languages:
            yield (
                f"language_model={self.language_model!r}: identifies nothing, since no language is {AUTO} and "
                f"clean.rules lacks language; say language: {AUTO}, of the build or of a source, or leave the model out"
            )

    def recorded(self) -> dict[str, Any]:
        """Return the configuration as files of the build hold it: without passwords and signatures."""
        settings = loading.to_dict(self)
        for source in settings["sources"]:
            source["input"] = without_secrets(source["input"])
        return settings

    @property
    def holds_ids(self) -> bool:
        """Whether the sources are lists of ids, and not text."""
        return self.sources[0].format == "ids"

    @property
    def identifies_languages(self) -> bool:
        """Whether the language of some document is identified, for its sentences or for the rule on languages."""
        languages = map(self.language_of, range(len(self.sources)))
        return not self.holds_ids and ("language" in self.clean.rules or AUTO in languages)

    @property
    def has_many_languages(self) -> bool:
        """Whether documents of several languages are told apart, and counted by them."""
        languages = {*map(self.language_of, range(len(self.sources)))}
        return not self.holds_ids and (len(languages) > 1 or AUTO in languages)

    def language_of(self, source: int) -> str:
        """Return the language of a source, or ``auto``."""
        return self.sources[source].language or self.language

    def kept_languages(self, source: int) -> tuple[str, ...]:
        """Return the languages that the cleaning rule on them keeps in a source; none if nothing says which."""
        own = self.sources[source].language
        if own in (None, AUTO) and self.clean.languages:
            return self.clean.languages
        language = self.language_of(source)
        return () if language == AUTO else (language,)

    @property
    def chunk_bytes(self) -> int:
        """Size of a chunk in bytes."""
        return int(self.chunk_mib * 2**20)

    def least_tokens(self, length: int) -> int:
        """Return the tokens that a document needs to give instances of at most ``length`` tokens."""
        return self.min_tokens[self.lengths.index(length)] if self.min_tokens else 0

    def max_predictions(self, length: int) -> int:
        """Return the most masked positions in an instance of at most ``length`` tokens."""
        if self.max_predictions_per_seq is not None:
            return self.max_predictions_per_seq[self.lengths.index(length)]
        return math.ceil(round(self.masked_lm_prob * length, 6))


BUILD_NEEDS: Needs = {
    **dict.fromkeys(("vocab_size", "spare_pieces", "pieces", "uncased"), Need("tokenizer", (None,))),
    # The help of a bound of cleaning begins with the rule that it belongs to.
    **{
        f"clean.{row.path}": Need("clean.rules", (rule[1],))
        for row in field_table(CleanConfig)
        if (rule := re.match(r"Rule (\w+):", row.about))
    },
}
"""Which fields of `BuildConfig` have an effect only together with others."""
