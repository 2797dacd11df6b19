"""The finished documents of a build, as the instances and the checks read them.

The documents of a split are stored in buckets, each an Arrow file. An index of three mapped arrays says where buckets,
documents and sentences start, so that everything later names a sentence or a token by its number over the whole split.
"""

# D documents, S sentences, T tokens of a split

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.arrow_files import flat_list, single_batch
from data_prep.execution.memory import release_pages
from megabert.randomness.keyed import mix

SPLITS: tuple[Literal["train", "validation"], ...] = ("train", "validation")
WINDOW_SENTENCES = 1 << 21
"""Part of a split's index that random reads hold in memory at once: 16 MiB."""
INDEX_PARTS = ("buckets", "documents", "sentences")
"""Files of a split's index, in the order of the arrays in `DocumentSet`."""


def bucket_path(folder: Path, split: str, bucket: int) -> Path:
    """Return the file of a bucket of documents."""
    return folder / f"{split}-{bucket:05d}.arrow"


def index_path(folder: Path, split: str, part: str) -> Path:
    """Return the file of one part of a split's index."""
    return folder / f"{split}-{part}.npy"


@dataclass
class DocumentSet:
    """The documents of a split, mapped: nothing is read before it is used."""

    folder: Path
    split: str
    bucket_starts: NDArray[np.int64]
    """Documents, sentences and tokens before each bucket, and their totals: shape (buckets + 1, 3)."""
    document_starts_D: NDArray[np.int64]
    """First sentence of each document, and the end of the last: shape (D + 1,)."""
    sentence_starts_S: NDArray[np.int64]
    """First token of each sentence, and the end of the last: shape (S + 1,)."""
    _tokens: tuple[int, NDArray[np.integer]] | None = None
    """Number and tokens of the bucket that was read last. Only one is kept, because a mapped file counts as memory of
    the process for as long as it is held."""

    @classmethod
    def open(cls, folder: Path, split: str) -> "DocumentSet":
        """Map the index of a split."""
        parts = [np.load(index_path(folder, split, part), mmap_mode="r") for part in INDEX_PARTS]
        return cls(folder, split, *parts)

    @property
    def num_documents(self) -> int:
        """Number of documents in the split."""
        return len(self.document_starts_D) - 1

    @property
    def num_sentences(self) -> int:
        """Number of sentences in the split."""
        return len(self.sentence_starts_S) - 1

    def document_keys(self, bucket: int) -> NDArray[np.uint64]:
        """Return a random key for each document of a bucket, from which its pairs and masks are drawn.

        The key depends on the document's text alone, so a document keeps its draws when others are added. Copies of a
        text, which would have equal keys, are numbered.
        """
        hashes = np.asarray(self._read(bucket)["document_hash"])
        first = np.searchsorted(hashes, hashes)  # hashes ascend, and equal ones are in one bucket
        return mix(hashes, np.arange(len(hashes)) - first)

    def _read(self, bucket: int) -> pa.RecordBatch:
        return single_batch(bucket_path(self.folder, self.split, bucket))

    @property
    def starts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first sentence of each document and the first token of each sentence, for compiled loops."""
        return np.asarray(self.document_starts_D), np.asarray(self.sentence_starts_S)

    def by_window(self, sentences: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of ``sentences`` in ascending order of their numbers, one group for each window of the index.

        Random access to the index of a large split would bring all of its pages into memory. Read window by window, no
        more than ``WINDOW_SENTENCES`` of it are there at once: the pages are given back after each group.

        Args:
            sentences: Sentences of the split near which the caller is going to read the index.
        """
        from data_prep.array_loops import order_of

        rows = order_of(sentences)
        if self.num_sentences <= WINDOW_SENTENCES:
            yield rows
            return
        borders = np.arange(WINDOW_SENTENCES, self.num_sentences, WINDOW_SENTENCES)
        for group in np.split(rows, np.searchsorted(sentences[rows], borders)):
            yield group
            release_pages(self.document_starts_D)
            release_pages(self.sentence_starts_S)

    def bucket_tokens(self, bucket: int) -> NDArray[np.integer]:
        """Return all tokens of a bucket as a view of its file."""
        if self._tokens is None or self._tokens[0] != bucket:
            self._tokens = bucket, flat_list(self._read(bucket)["input_ids"])[0]
        return self._tokens[1]

    def copy_tokens(
        self,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        target: NDArray[np.integer],
        places: NDArray[np.int64],
    ) -> None:
        """Copy ranges of tokens, each within one document, bucket by bucket so that one file is mapped at a time.

        Args:
            starts: First token of each range, as a number over the split.
            lengths: Tokens of each range.
            target: Array that the tokens are copied to.
            places: Index in ``target`` at which each range starts.
        """
        from data_prep.array_loops import Ranges, by_part, copy_ranges

        # Grouped by bucket, so that each bucket's file is mapped once.
        first_tokens = np.ascontiguousarray(self.bucket_starts[:, 2])
        order, begins = by_part(starts, first_tokens)
        ranges = Ranges(starts, lengths, places)
        for bucket in np.flatnonzero(np.diff(begins)).tolist():
            rows = order[begins[bucket] : begins[bucket + 1]]
            copy_ranges(self.bucket_tokens(bucket), first_tokens[bucket], rows, ranges, target)

    @cached_property
    def document_first_tokens_D(self) -> NDArray[np.int64]:
        """First token of each document, and the end of the last: shape (D + 1,)."""
        return np.asarray(self.sentence_starts_S)[self.document_starts_D]

    def document_of_token(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the document that holds each token number; the last one for a number behind all."""
        documents = np.searchsorted(self.document_first_tokens_D, tokens, side="right") - 1
        return np.minimum(documents, self.num_documents - 1)


@lru_cache(maxsize=4)
def documents_of(folder: Path, split: str) -> DocumentSet:
    """Return the documents of a split, opened once a process."""
    return DocumentSet.open(folder, split)
