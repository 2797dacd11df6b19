"""The second stage: tokenize the documents of one extracted chunk, sorted by split and hash."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_prep.arrow_files import gather, make_list, offsets_of, open_mapped, write_batches
from data_prep.execution.work_units import Counts
from megabert.randomness.keyed import mix, string_key, uniform
from megabert.schema import token_type
from megabert.tokenization import Tokenizer, load_tokenizer

SENTENCES_A_CALL = 65_536
SPLITS: tuple[Literal["train", "validation"], ...] = ("train", "validation")


def document_schema(vocab_size: int) -> pa.Schema:
    """Return the schema of tokenized documents: all ids of a document, and how long its sentences are."""
    return pa.schema(
        [
            ("document_hash", pa.uint64()),
            ("split", pa.uint8()),
            ("source", pa.uint16()),
            ("input_ids", pa.list_(token_type(vocab_size))),
            ("sentence_lengths", pa.list_(pa.uint32())),
        ]
    )


@dataclass(frozen=True)
class TokenizeTask:
    """An extracted chunk and what to make of it."""

    source: Path
    tokenizer: Path
    validation_share: float
    path: Path


@lru_cache(maxsize=1)
def tokenizer_of(folder: Path) -> Tokenizer:
    """Load a tokenizer once a process."""
    return load_tokenizer(folder)


def split_of(hashes: NDArray[np.uint64], validation_share: float) -> NDArray[np.uint8]:
    """Return 1 for held-out documents; by the hash alone, so it stays when documents are added or the seed changes."""
    return (uniform(mix(hashes, string_key("split"))) < validation_share).astype(np.uint8)


def tokenize(task: TokenizeTask) -> tuple[list[Path], Counts]:
    """Write the tokenized documents of a chunk; sentences and documents without a piece are dropped and counted."""
    tokenizer = tokenizer_of(task.tokenizer)
    reader = open_mapped(task.source)
    table = reader.read_all()
    schema = document_schema(tokenizer.vocab_size)
    if not table.num_rows:
        write_batches(task.path, schema, [])
        return [task.path], {"documents": [0, 0]}
    hashes, sources = (np.asarray(table[name]) for name in ("document_hash", "source"))
    sentences = table["sentences"].combine_chunks()
    document_offsets = np.asarray(sentences.offsets).astype(np.int64)
    texts = sentences.values
    if tokenizer.kind.name != "wordpiece":  # to which white space means nothing
        texts = pc.utf8_trim_whitespace(texts)
    if tokenizer.kind.keeps_spaces:
        texts = _spaced(texts, document_offsets)
    ids, lengths = _encode(tokenizer, texts)
    documents = _Documents(hashes, split_of(hashes, task.validation_share), sources, ids, lengths, document_offsets)
    kept = documents.ordered()
    batch = pa.record_batch(kept.columns(schema), schema=schema)
    write_batches(task.path, schema, [batch])
    counts = {
        "documents": np.bincount(kept.splits, minlength=2).tolist(),
        "tokens": len(ids),
        "unknown_tokens": int(np.count_nonzero(ids == tokenizer.special_ids.unk)),
        "empty_sentences": int(np.count_nonzero(lengths == 0)),
        "documents_without_tokens": int(len(hashes) - len(kept.hashes)),
        "one_sentence_documents": int(np.count_nonzero(np.diff(kept.document_offsets) == 1)),
        "bytes": task.source.stat().st_size,
    }
    return [task.path], counts


def _spaced(sentences: pa.StringArray, document_offsets: NDArray[np.int64]) -> pa.StringArray:
    """Give each sentence but a document's first the space that stood before it in running text."""
    spaces = np.full(len(sentences), " ", dtype=object)
    spaces[document_offsets[:-1][np.diff(document_offsets) > 0]] = ""
    return pc.binary_join_element_wise(pa.array(spaces, sentences.type), sentences, "")


def _encode(tokenizer: Tokenizer, sentences: pa.StringArray) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    dtype = np.dtype(token_type(tokenizer.vocab_size).to_pandas_dtype())
    parts, lengths = [], []
    for first in range(0, len(sentences), SENTENCES_A_CALL):
        ids, offsets = tokenizer.encode_flat(sentences.slice(first, SENTENCES_A_CALL))
        parts.append(ids.astype(dtype))
        lengths.append(np.diff(offsets))
    return np.concatenate(parts), np.concatenate(lengths).astype(np.int64)


@dataclass(frozen=True)
class _Documents:
    hashes: NDArray[np.uint64]
    splits: NDArray[np.uint8]
    sources: NDArray[np.uint16]
    ids: NDArray[np.integer]
    sentence_lengths: NDArray[np.integer]
    document_offsets: NDArray[np.int64]

    def ordered(self) -> "_Documents":
        """Drop what is empty and sort by (split, hash)."""
        sentence_document = np.repeat(np.arange(len(self.hashes)), np.diff(self.document_offsets))
        is_kept = self.sentence_lengths > 0
        lengths = self.sentence_lengths[is_kept]
        sentences = np.bincount(sentence_document[is_kept], minlength=len(self.hashes))
        tokens = np.bincount(sentence_document, weights=self.sentence_lengths, minlength=len(self.hashes))
        order = np.lexsort((self.hashes, self.splits))
        order = order[sentences[order] > 0]
        tokens = tokens.astype(np.int64)
        return _Documents(
            self.hashes[order],
            self.splits[order],
            self.sources[order],
            gather(self.ids, (np.cumsum(tokens) - tokens)[order], tokens[order]),
            gather(lengths, (np.cumsum(sentences) - sentences)[order], sentences[order]),
            offsets_of(sentences[order]),
        )

    def columns(self, schema: pa.Schema) -> list[pa.Array]:
        ends = np.concatenate([[0], np.cumsum(self.sentence_lengths)])
        return [
            pa.array(self.hashes),
            pa.array(self.splits),
            pa.array(self.sources),
            make_list(self.ids, ends[self.document_offsets]),
            make_list(self.sentence_lengths.astype(np.uint32), self.document_offsets),
        ]


def read_documents_of(path: Path, split: int, low: int, high: int) -> list[pa.RecordBatch]:
    """Return the documents of a split whose hash lies in ``[low, high)``, copied: held maps of many files add up."""
    reader = open_mapped(path)
    if not reader.num_record_batches:
        return []
    batch = reader.get_batch(0)
    splits, hashes = np.asarray(batch["split"]), np.asarray(batch["document_hash"])
    begin, end = np.searchsorted(splits, [split, split + 1])
    part = hashes[begin:end]
    first = begin + np.searchsorted(part, np.uint64(low))
    last = end if high >= 1 << 64 else begin + np.searchsorted(part, np.uint64(high))
    if last <= first:
        return []
    part = batch.slice(first, last - first)
    return [pa.ipc.read_record_batch(part.serialize(), part.schema)]  # copied as blocks; `take` goes row by row
