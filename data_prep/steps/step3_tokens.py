"""Step 3: decide which documents are held out, tokenize each extracted file, and sort its documents by split and hash.

Held out are the documents with the smallest draws, up to the share that is asked for. A draw is a hash of the text
alone. So the choice depends neither on the order of the input nor on the workers nor on the seed, copies of a text are
in one split, and documents that are added change it for few of the others. Draws are ranked, so the share is reached
exactly, however few documents there are. Both splits get at least the number of documents that the objective needs. In
a corpus of more than a million documents, each draw is compared with the share alone, and the result is within a
hundredth of the share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_prep.checks.corpus_counts import needed, require_enough, require_several_sentences
from data_prep.config.build import BuildConfig
from data_prep.documents.arrow_files import checked_batches, checked_table, offsets_of, one_batch, write_batches
from data_prep.documents.document_set import EXTRACTED, TokenizedDocuments, bucket_schema, document_schema, tokenizer_of
from data_prep.documents.token_files import TokenFiles
from data_prep.execution.executors import Executor
from data_prep.execution.progress import TOKENS
from data_prep.execution.records import Counts, Outcome, StepRecords
from data_prep.execution.work_units import RunningBuild
from megabert.foundation.errors import DataError
from megabert.foundation.files import sha256_file
from megabert.foundation.json_files import unseal
from megabert.foundation.randomness.keyed import mix, string_key
from megabert.tokens.shards.format import token_type
from megabert.tokens.tokenization import Tokenizer

MOST_RANKED = 1 << 20
"""Documents of which one process ranks all draws: 8 MiB."""
Draws = NDArray[np.uint64]
SENTENCES_PER_CALL = 65_536
NAME, SPLIT_AGAIN_NAME = "{number:06d}.arrow", "again-{number:06d}.arrow"
"""Names of files of tokenized documents: of text, and of documents of earlier settings. They differ, because a record
is found by the name of its file, and both kinds have records in one step."""


@dataclass(frozen=True)
class TokenizeTask:
    """An extracted file and what to make of it."""

    source: Path
    tokenizer: Path
    held_out_below: int
    """The bound below which a document's draw holds it out."""
    path: Path
    """Output."""


@dataclass(frozen=True)
class SplitTask:
    """A bucket of earlier settings, and what its documents' splits depend on."""

    source: Path
    record: bytes
    """Record of the bucket."""
    context: str
    """Context of its seal."""
    tokenizer: Path
    held_out_below: int
    """The bound below which a document's draw holds it out."""
    path: Path
    """Output."""


def draws_of(hashes: NDArray[np.uint64]) -> Draws:
    """Return the draw of each document, from the hash of its text."""
    return np.asarray(mix(hashes, string_key("split")))


def split_of(hashes: NDArray[np.uint64], below: int) -> NDArray[np.uint8]:
    """Return 1 for documents that are held out: their draw is below a bound, the result of `find_held_out_bound`."""
    return (draws_of(hashes) < np.uint64(below)).astype(np.uint8)


def find_held_out_bound(
    config: BuildConfig, documents: int, files: Sequence[Path], schema: pa.Schema, executor: Executor
) -> int:
    """Return the bound below which a document's draw holds it out.

    Args:
        config: Names the share and the objective.
        documents: Number of documents in all files.
        files: All documents, with the hashes of their texts.
        schema: Columns of the files, the last of which has the sentences of a document or the lengths of these.
        executor: Reads the files.

    Raises:
        DataError: There are too few documents for both splits.
    """
    if documents > MOST_RANKED:
        return int(config.validation_share * 2**64)
    read = [part for _, part in executor.run(partial(read_draws, schema), files)]
    all_draws, long_draws = (np.concatenate([np.zeros(0, np.uint64), *parts]) for parts in zip(*read, strict=True))
    require_several_sentences(config, len(all_draws) - len(long_draws), len(all_draws))
    if not config.validation_share:  # copies of a text may be trained on; a build warns of labels that teach nothing
        require_enough(config, len(all_draws), len(long_draws))
        return 0
    every, several = np.unique(all_draws), np.unique(long_draws)
    require_enough(config, len(every), len(several))
    usable = every if config.objective == "none" else several
    least = needed(config)
    wanted = int(every[math.ceil(config.validation_share * len(every)) - 1]) + 1
    # At least `needed` documents are held out, and at least `needed` are left to train on.
    return min(max(wanted, int(usable[least - 1]) + 1), int(usable[len(usable) - least]))


def read_draws(schema: pa.Schema, file: Path) -> tuple[Draws, Draws]:
    """Return the draws of a file's documents, and of those with two sentences or more."""
    table = pa.Table.from_batches(checked_batches(file, schema, is_full=False), schema)
    draws = draws_of(np.asarray(table["document_hash"]))
    return draws, draws[np.asarray(pc.list_value_length(table[schema.names[-1]])) > 1]


def tokenize_documents(build: RunningBuild, texts: Sequence[Path], held_out_below: int) -> tuple[TokenFiles, Counts]:
    """Tokenize all extracted documents; of ids, give them their splits.

    Args:
        build: The build.
        texts: Files of extracted documents.
        held_out_below: The result of `find_held_out_bound`.

    Returns:
        One file of tokenized documents for each extracted file, and the counts.
    """
    tokenizer, files = build.path("tokenizer"), TokenFiles(build.path("work", "tokens"), NAME, len(texts))

    def task(number: int) -> TokenizeTask:
        return TokenizeTask(texts[number], tokenizer, held_out_below, files[0, number].path)

    function = split_ids if build.config.holds_ids else tokenize
    results = build.run("tokens", build.units("tokens", function, len(texts), task), TOKENS)
    return files, results.counts


def split_documents_again(
    build: RunningBuild, sources: Sequence[Path], context: str, held_out_below: int
) -> tuple[TokenFiles, int]:
    """Give documents of earlier settings their new splits.

    Args:
        build: The build.
        sources: Their buckets.
        context: Context of the seals of their records.
        held_out_below: The result of `find_held_out_bound`.

    Returns:
        A file of tokenized documents for each bucket, and how many are held out.
    """
    files = TokenFiles(build.path("work", "tokens"), SPLIT_AGAIN_NAME, len(sources))
    records = StepRecords(build.folder, "before").read()
    tokenizer = build.path("tokenizer")

    def task(number: int) -> SplitTask:
        record = records.get(sources[number].stem.encode(), b"")
        return SplitTask(sources[number], record, context, tokenizer, held_out_below, files[0, number].path)

    results = build.run("tokens: split again", build.units("tokens", split_again, len(sources), task), TOKENS)
    return files, results.counts["held_out"]


def split_again(task: SplitTask) -> tuple[list[Path], Counts]:
    """Write the documents of a bucket with their new splits.

    Raises:
        DataError: The bucket does not fit its record.
    """
    remedy = "Delete the folder of the build, or give --output a new one: the text that it was made from is deleted."
    outcome = unseal(task.record, Outcome, task.context, where=f"{task.source}: its record", remedy=remedy)
    if [file.sha256 for file in outcome.files.values()] != [sha256_file(task.source)]:
        raise DataError(f"{task.source}: damaged (its SHA-256 does not fit). {remedy}")
    documents = _write_with_splits(task)
    return [task.path], {"held_out": int(documents.splits_D.sum()), "tokens": len(documents.ids_T)}


def split_ids(task: TokenizeTask) -> tuple[list[Path], Counts]:
    """Write the documents of a file of ids, which need no tokenizing, with their splits."""
    documents = _write_with_splits(task)
    return [task.path], {**_counts(task, documents), "empty_sentences": 0, "documents_without_tokens": 0}


def _write_with_splits(task: TokenizeTask | SplitTask) -> TokenizedDocuments:
    """Give the documents of a file, which are one record batch, their splits, and write them, sorted; return them."""
    vocab_size = tokenizer_of(task.tokenizer).vocab_size
    documents = TokenizedDocuments.of(one_batch(task.source, bucket_schema(vocab_size)))
    documents = replace(documents, splits_D=split_of(documents.hashes_D, task.held_out_below))
    documents = documents.take(np.lexsort((documents.hashes_D, documents.splits_D)))
    documents.write(task.path, document_schema(vocab_size))
    return documents


def _counts(task: TokenizeTask, documents: TokenizedDocuments) -> Counts:
    """Count the documents of a file, which are of one source."""
    ids, source = documents.ids_T, str(documents.sources_D[:1].sum())
    return {
        "documents": np.bincount(documents.splits_D, minlength=2).tolist(),
        "tokens": len(ids),
        "tokens_by_source": {source: len(ids)},
        "unknown_tokens": int(np.count_nonzero(ids == tokenizer_of(task.tokenizer).special_ids.unk)),
        "one_sentence_documents": int(np.count_nonzero(np.diff(documents.sentence_offsets) == 1)),
        "bytes": task.source.stat().st_size,
    }


def tokenize(task: TokenizeTask) -> tuple[list[Path], Counts]:
    """Write the tokenized documents of a file; sentences and documents without a piece are dropped and counted."""
    tokenizer = tokenizer_of(task.tokenizer)
    table = checked_table(task.source, EXTRACTED)
    schema = document_schema(tokenizer.vocab_size)
    if not table.num_rows:
        write_batches(task.path, schema, [])
        return [task.path], {"documents": [0, 0]}
    sentences = table["sentences"].combine_chunks()
    sentence_offsets = np.asarray(sentences.offsets).astype(np.int64)
    texts = sentences.values
    if tokenizer.kind.name != "wordpiece":  # WordPiece ignores white space, a byte BPE has pieces for it
        texts = pc.utf8_trim_whitespace(texts)
    if tokenizer.kind.keeps_spaces:
        texts = _spaced(texts, sentence_offsets)
    ids, lengths = _encode(tokenizer, texts)

    # Sentences without a piece vanish from their documents, and documents without a sentence from the corpus.
    has_tokens = lengths > 0
    hashes, sources = (np.asarray(table[name]) for name in ("document_hash", "source"))
    splits = split_of(hashes, task.held_out_below)
    sentence_offsets = offsets_of(has_tokens.astype(np.int64))[sentence_offsets]
    documents = TokenizedDocuments(hashes, splits, sources, ids, lengths[has_tokens], sentence_offsets)

    # Sorted by split and hash, any range of hashes is one slice of the file for its readers.
    order = np.lexsort((hashes, splits))
    documents = documents.take(order[np.diff(sentence_offsets)[order] > 0])
    documents.write(task.path, schema)
    dropped = {
        "empty_sentences": int(np.count_nonzero(~has_tokens)),
        "documents_without_tokens": len(hashes) - len(documents),
    }
    return [task.path], {**_counts(task, documents), **dropped}


def _spaced(sentences: pa.StringArray, sentence_offsets: NDArray[np.int64]) -> pa.StringArray:
    """Give each sentence but a document's first the space that preceded it in running text."""
    is_first = np.zeros(len(sentences), bool)
    is_first[sentence_offsets[:-1][np.diff(sentence_offsets) > 0]] = True
    spaces = pc.if_else(is_first, pa.scalar("", sentences.type), pa.scalar(" ", sentences.type))
    return pc.binary_join_element_wise(spaces, sentences, "")


def _encode(tokenizer: Tokenizer, sentences: pa.StringArray) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Return the ids of all sentences, end to end, and the number of ids of each."""
    dtype = np.dtype(token_type(tokenizer.vocab_size).to_pandas_dtype())
    # In calls of bounded size: the tokenizer's ids take more memory than the narrower type in which they are kept.
    parts, lengths = [], []
    for first in range(0, len(sentences), SENTENCES_PER_CALL):
        ids, offsets = tokenizer.encode_flat(sentences.slice(first, SENTENCES_PER_CALL))
        parts.append(ids.astype(dtype))
        lengths.append(np.diff(offsets))
    return np.concatenate(parts), np.concatenate(lengths).astype(np.int64)
