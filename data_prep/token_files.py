"""Files of tokenized documents, sorted by split and hash: written one per chunk, read by ranges of hashes."""

# D documents, S sentences, T tokens

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.arrow_files import flat_list, gather, make_list, offsets_of, single_batch, write_batches
from data_prep.text_hashes import rows_in_range
from megabert.schema import token_type


def document_schema(vocab_size: int) -> pa.Schema:
    """Return the schema of tokenized documents: all ids of a document, and the lengths of its sentences."""
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
class TokenizedDocuments:
    """Documents as flat arrays: the tokens of all, end to end, and where sentences and documents end in them."""

    hashes_D: NDArray[np.uint64]
    """Hash of each document's text."""
    splits_D: NDArray[np.uint8]
    """Split of each document: 0 for training, 1 held out."""
    sources_D: NDArray[np.uint16]
    """Index of the source that each document came from."""
    ids_T: NDArray[np.integer]
    sentence_lengths_S: NDArray[np.integer]
    """Tokens of each sentence."""
    sentence_offsets: NDArray[np.int64]
    """Shape (D + 1,): where each document's sentences begin."""

    def __len__(self) -> int:
        return len(self.hashes_D)

    @property
    def token_offsets(self) -> NDArray[np.int64]:
        """Where each document's tokens begin, shape (D + 1,)."""
        return offsets_of(self.sentence_lengths_S)[self.sentence_offsets]

    def take(self, order: NDArray[np.integer]) -> "TokenizedDocuments":
        """Return the documents with these numbers, in this order; a number may occur several times."""
        # Tokens of a document are consecutive, and so are its sentences: both are gathered as ranges.
        first_tokens, tokens = self.token_offsets[:-1], np.diff(self.token_offsets)
        first_sentences, sentences = self.sentence_offsets[:-1], np.diff(self.sentence_offsets)
        return TokenizedDocuments(
            self.hashes_D[order],
            self.splits_D[order],
            self.sources_D[order],
            gather(self.ids_T, first_tokens[order], tokens[order]),
            gather(self.sentence_lengths_S, first_sentences[order], sentences[order]),
            offsets_of(sentences[order]),
        )

    def write(self, path: Path, schema: pa.Schema) -> None:
        """Write the documents as one record batch, so that the tokens of a mapped file are one array.

        Args:
            path: The file.
            schema: That of `document_schema`, or some of its columns.
        """
        if not len(self):
            write_batches(path, schema, [])
            return
        columns = {
            "document_hash": pa.array(self.hashes_D),
            "split": pa.array(self.splits_D),
            "source": pa.array(self.sources_D),
            "input_ids": make_list(self.ids_T, self.token_offsets),
            "sentence_lengths": make_list(self.sentence_lengths_S.astype(np.uint32), self.sentence_offsets),
        }
        write_batches(path, schema, [pa.record_batch([columns[name] for name in schema.names], schema=schema)])


def read_range(paths: Iterable[Path], splits: Iterable[int], low: int, high: int) -> TokenizedDocuments:
    """Return the documents of some splits whose hashes are from ``low`` to below ``high``, perhaps none.

    They are ordered by split, then by file, then by hash.
    """
    parts = [part for split in splits for path in paths if (part := _read_one(path, split, low, high)) is not None]

    def join(dtype: type[np.integer], arrays: Iterable[NDArray]) -> NDArray:
        return np.concatenate([np.zeros(0, dtype), *arrays])  # np.concatenate refuses an empty list

    return TokenizedDocuments(
        join(np.uint64, (part.hashes_D for part in parts)),
        join(np.uint8, (part.splits_D for part in parts)),
        join(np.uint16, (part.sources_D for part in parts)),
        join(np.uint16, (part.ids_T for part in parts)),
        join(np.uint32, (part.sentence_lengths_S for part in parts)),
        offsets_of(join(np.int64, (np.diff(part.sentence_offsets) for part in parts))),
    )


def _read_one(path: Path, split: int, low: int, high: int) -> TokenizedDocuments | None:
    # The documents are sorted by split, and within a split by hash: two searches give the slice.
    batch = single_batch(path)
    begin, end = np.searchsorted(np.asarray(batch["split"]), [split, split + 1])
    batch = batch.slice(begin, end - begin)
    rows = rows_in_range(np.asarray(batch["document_hash"]), low, high)
    if rows.start >= rows.stop:
        return None
    batch = batch.slice(rows.start, rows.stop - rows.start)
    # Everything is copied: a mapped file counts as memory of the process for as long as a view of it is held, and
    # there are many files.
    hashes, splits, sources = (np.array(batch[name]) for name in ("document_hash", "split", "source"))
    ids, _ = flat_list(batch["input_ids"])
    lengths, sentence_offsets = flat_list(batch["sentence_lengths"])
    return TokenizedDocuments(hashes, splits, sources, ids.copy(), lengths.copy(), sentence_offsets)
