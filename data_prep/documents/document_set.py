"""Tokenized documents as arrays, and the finished set of a split.

The finished documents of a split are stored in buckets, each an Arrow file. An index says how many documents, sentences
and tokens come before each bucket, so that everything later names a token by its number over the whole split. Where
documents and sentences start within a bucket is read from the bucket: nothing is ever as long as the corpus.

Documents go by the hash of their text: equal texts have equal hashes, and a range of hashes holds a random share of the
texts. Which range a text falls into depends on the text alone, so neither the number of workers nor the order of the
input changes anything.
"""

# D documents, S sentences, T tokens

import hashlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.documents import arrow_files
from megabert.foundation.randomness.keyed import mix, order_of
from megabert.tokens.shards.columns import flat_list
from megabert.tokens.shards.format import token_type
from megabert.tokens.tokenization import load_tokenizer

EXTRACTED = pa.schema([("document_hash", pa.uint64()), ("source", pa.uint16()), ("sentences", pa.list_(pa.string()))])
"""Schema of extracted documents, which are not tokenized yet."""
HELD_BYTES = 36 << 20
"""Buckets that a process holds open: with 5 million tokens each, a unit's own and two partners of it."""
SPLITS: tuple[Literal["train", "validation"], ...] = ("train", "validation")


def hash_text(text: str) -> int:
    """Return 64 bits of the BLAKE2b hash of a text; any white space in a line counts as one space, as for tokenizers.

    Args:
        text: The text, without white space at its ends; its lines are paragraphs.
    """
    lines = text.split("\n")
    if "  " in text or not all(map(str.isprintable, lines)):  # of white space, only the plain space is printable
        text = "\n".join(" ".join(line.split()) for line in lines)
    return hash_bytes(text.encode())


def hash_bytes(content: bytes) -> int:
    """Return 64 bits of the BLAKE2b hash of some bytes."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def hash_range(number: int, ranges: int) -> tuple[int, int]:
    """Return the first hash of range ``number`` of ``ranges`` equal ranges, and the first hash of the next one."""
    return (number << 64) // ranges, ((number + 1) << 64) // ranges


def rows_in_range(hashes: NDArray[np.uint64], low: int, high: int) -> slice:
    """Return the rows of ascending hashes that are from ``low`` to below ``high``."""
    first = np.searchsorted(hashes, np.uint64(low))
    # The end of the last range is 2**64, which no uint64 holds.
    last = len(hashes) if high >= 1 << 64 else np.searchsorted(hashes, np.uint64(high))
    return slice(int(first), int(last))


def document_schema(vocab_size: int) -> pa.Schema:
    """Return the schema of tokenized documents: all ids of a document, and the lengths of its sentences."""
    columns = {
        "document_hash": pa.uint64(),
        "split": pa.uint8(),
        "source": pa.uint16(),
        "input_ids": pa.list_(token_type(vocab_size)),
        "sentence_lengths": pa.list_(pa.uint32()),
    }
    return pa.schema(columns)


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

    @classmethod
    def of(cls, batch: pa.RecordBatch, split: int = 0) -> Self:
        """Open a record batch; values are views of it, and nothing is checked yet.

        Args:
            batch: Has the columns of `document_schema`, perhaps without the split.
            split: The split of all documents, if there is no such column.
        """
        ids, _ = flat_list(batch["input_ids"])
        lengths, sentence_offsets = flat_list(batch["sentence_lengths"])
        splits = batch["split"] if "split" in batch.schema.names else np.full(len(batch), split, np.uint8)
        hashes, sources = (np.asarray(batch[name]) for name in ("document_hash", "source"))
        return cls(hashes, np.asarray(splits), sources, ids, lengths, sentence_offsets)

    def require_sound(self, path: Path, vocab_size: int, tokens_D: NDArray[np.integer]) -> Self:
        """Return the documents if loops can go by their numbers: offsets, lengths and ids.

        Args:
            path: The file that they come from.
            vocab_size: Number of pieces in the vocabulary.
            tokens_D: Tokens of each document as its list of ids says, to check the sum of its sentences.

        Raises:
            DataError: They contradict each other, or an id is out of range.
        """
        sentences_D = np.diff(self.sentence_offsets)
        if not (self.sentence_offsets[-1] == len(self.sentence_lengths_S) and (sentences_D > 0).all()):
            raise arrow_files.unreadable(path, "documents without sentences, or sentences without a document")
        ends = np.array_equal(np.diff(self.token_offsets), tokens_D) and tokens_D.sum() == len(self.ids_T)
        if not (ends and (self.sentence_lengths_S > 0).all()):
            raise arrow_files.unreadable(path, "the lengths of sentences do not add up to those of documents")
        if len(self.ids_T) and self.ids_T.max() >= vocab_size:
            raise arrow_files.unreadable(path, f"the id {self.ids_T.max()} in a vocabulary of {vocab_size} pieces")
        return self

    def __len__(self) -> int:
        return len(self.hashes_D)

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take, mapped or not."""
        return sum(array.nbytes for array in vars(self).values())

    @property
    def token_offsets(self) -> NDArray[np.int64]:
        """Where each document's tokens begin, shape (D + 1,)."""
        return arrow_files.offsets_of(self.sentence_lengths_S)[self.sentence_offsets]

    def take(self, order: NDArray[np.integer]) -> "TokenizedDocuments":
        """Return the documents with these numbers, in this order; a number may occur several times."""
        # Tokens of a document are consecutive, and so are its sentences: both are gathered as ranges.
        first_tokens, tokens = self.token_offsets[:-1], np.diff(self.token_offsets)
        first_sentences, sentences = self.sentence_offsets[:-1], np.diff(self.sentence_offsets)
        return TokenizedDocuments(
            self.hashes_D[order],
            self.splits_D[order],
            self.sources_D[order],
            arrow_files.gather(self.ids_T, first_tokens[order], tokens[order]),
            arrow_files.gather(self.sentence_lengths_S, first_sentences[order], sentences[order]),
            arrow_files.offsets_of(sentences[order]),
        )

    def write(self, path: Path, schema: pa.Schema) -> None:
        """Write the documents as one record batch, so that the tokens of a mapped file are one array.

        Args:
            path: The file.
            schema: The result of `document_schema`, or some of its columns.
        """
        arrow_files.write_batches(path, schema, [self.to_batch(schema)] if len(self) else [])

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the documents as a record batch with the columns of a schema."""
        if not len(self):  # without documents, the type of their ids is unknown
            return pa.RecordBatch.from_pylist([], schema=schema)
        columns = {
            "document_hash": pa.array(self.hashes_D),
            "split": pa.array(self.splits_D),
            "source": pa.array(self.sources_D),
            "input_ids": arrow_files.make_list(self.ids_T, self.token_offsets),
            "sentence_lengths": arrow_files.make_list(self.sentence_lengths_S.astype(np.uint32), self.sentence_offsets),
        }
        return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def bucket_schema(vocab_size: int) -> pa.Schema:
    """Return the schema of a bucket, whose documents are all of one split."""
    schema = document_schema(vocab_size)
    return schema.remove(schema.get_field_index("split"))


def bucket_path(folder: Path, split: str, bucket: int) -> Path:
    """Return the file of a bucket of documents."""
    return folder / f"{split}-{bucket:05d}.arrow"


def index_path(folder: Path, split: str) -> Path:
    """Return the index of a split's buckets."""
    return folder / f"{split}-buckets.npy"


@dataclass
class DocumentSet:
    """The documents of a split: a bucket is opened when something of it is used, and a few are held at a time."""

    folder: Path
    split: str
    bucket_starts: NDArray[np.int64]
    """Documents, sentences and tokens before each bucket, and their totals: shape (buckets + 1, 3)."""
    vocab_size: int
    """Pieces of the vocabulary, which bounds the ids."""
    plans: dict[Hashable, Any] = field(default_factory=dict)
    """What `data_prep.instances.balanced` keeps of the buckets that it has walked."""
    _opened: dict[int, TokenizedDocuments] = field(default_factory=dict)
    """Content of the buckets that were used last, by their numbers. A mapped file counts as memory of the process for
    as long as it is held, so they are `HELD_BYTES` at most, but for the last one."""

    @classmethod
    def open(cls, folder: Path, split: str, vocab_size: int) -> "DocumentSet":
        """Read the index of a split.

        Raises:
            DataError: It is missing or damaged.
        """
        path = index_path(folder, split)
        starts = np.array(arrow_files.checked_array(path, np.int64, (None, 3)))
        if len(starts) < 2 or starts[0].any() or (np.diff(starts, axis=0) < 0).any():
            raise arrow_files.unreadable(path, "it has to ascend from 0")
        return cls(folder, split, starts, vocab_size)

    @property
    def num_buckets(self) -> int:
        """Number of buckets of the split."""
        return len(self.bucket_starts) - 1

    @property
    def num_documents(self) -> int:
        """Number of documents in the split."""
        return int(self.bucket_starts[-1, 0])

    @cached_property
    def first_tokens(self) -> NDArray[np.int64]:
        """Number of the first token of each bucket over the split, and the number of all tokens."""
        return np.ascontiguousarray(self.bucket_starts[:, 2])

    def document_keys(self, bucket: int) -> NDArray[np.uint64]:
        """Return a random key for each document of a bucket, from which its pairs and masks are drawn.

        The key depends on the document's text alone, so a document keeps its draws when others are added. Copies of a
        text, which would have equal keys, are numbered.
        """
        hashes = self.read(bucket).hashes_D
        first = np.searchsorted(hashes, hashes)  # hashes ascend, and equal ones are in one bucket
        return mix(hashes, np.arange(len(hashes)) - first)

    def sentences(self, bucket: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where documents and sentences of a bucket start.

        Returns:
            The first sentence of each document, numbered from 0 in the bucket, and the end of the last; the first token
            of each sentence, numbered over the split, and the end of the last.
        """
        documents = self.read(bucket)
        return documents.sentence_offsets, arrow_files.offsets_of(documents.sentence_lengths_S) + self.first_tokens[
            bucket
        ]

    def read(self, bucket: int) -> TokenizedDocuments:
        """Return the documents of a bucket as views of its file, in ascending order of their hashes.

        Copies of a text are in one bucket.
        """
        documents = self._opened.pop(bucket, None)
        if documents is None:
            documents = self._open_bucket(bucket)
        self._opened[bucket] = documents  # as the newest
        while len(self._opened) > 1 and sum(held.nbytes for held in self._opened.values()) > HELD_BYTES:
            del self._opened[next(iter(self._opened))]
        return documents

    def _open_bucket(self, bucket: int) -> TokenizedDocuments:
        """Map a bucket and compare it with the index."""
        path = bucket_path(self.folder, self.split, bucket)
        documents = TokenizedDocuments.of(batch := arrow_files.one_batch(path, bucket_schema(self.vocab_size)))
        sizes = [len(documents), len(documents.sentence_lengths_S), len(documents.ids_T)]
        said = (self.bucket_starts[bucket + 1] - self.bucket_starts[bucket]).tolist()
        if sizes != said:
            raise arrow_files.unreadable(path, f"documents, sentences and tokens are {sizes}, the index says {said}")
        if (documents.hashes_D[1:] < documents.hashes_D[:-1]).any():
            raise arrow_files.unreadable(path, "its hashes do not ascend")
        return documents.require_sound(path, self.vocab_size, np.diff(flat_list(batch["input_ids"])[1]))

    def by_bucket(self, numbers: NDArray[np.int64], firsts: NDArray[np.int64]) -> Iterator[tuple[int, NDArray]]:
        """Yield each bucket that holds some of the tokens or documents, with their rows, so that each is opened once.

        Args:
            numbers: Numbers over the split of tokens, or of documents.
            firsts: The first one of each bucket, and the number of all.
        """
        buckets = np.searchsorted(firsts[1:-1], numbers, side="right")
        rows = order_of(buckets)
        borders = np.flatnonzero(np.diff(buckets[rows])) + 1
        for group in np.split(rows, borders):
            if len(group):
                yield int(buckets[group[0]]), group

    def copy_tokens(
        self,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        target: NDArray[np.integer],
        places: NDArray[np.int64],
    ) -> None:
        """Copy ranges of tokens, each within one document.

        Args:
            starts: First token of each range, as a number over the split.
            lengths: Tokens of each range.
            target: Array that the tokens are copied to.
            places: Index in ``target`` at which each range starts.
        """
        from data_prep.documents.array_loops import copy_ranges

        for bucket, rows in self.by_bucket(starts, self.first_tokens):
            tokens, first = self.read(bucket).ids_T, self.first_tokens[bucket]
            copy_ranges(tokens, first, rows, starts, lengths, places, target)

    def document_of_token(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the document, numbered over the split, that holds each token; the last one for a number past the
        end.
        """
        documents = np.empty_like(tokens)
        for bucket, rows in self.by_bucket(tokens, self.first_tokens):
            document_starts, sentence_starts = self.sentences(bucket)
            first_tokens = sentence_starts[document_starts]
            within = np.searchsorted(first_tokens[1:-1], tokens[rows], side="right")
            documents[rows] = within + self.bucket_starts[bucket, 0]
        return np.minimum(documents, self.num_documents - 1)


documents_of = lru_cache(maxsize=4)(DocumentSet.open)
"""Returns the documents of a split in a folder, opened once a process."""
tokenizer_of = lru_cache(maxsize=1)(load_tokenizer)
"""Returns the tokenizer of a folder, loaded once a process."""
