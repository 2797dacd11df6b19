"""Damaged documents are refused before a compiled loop goes by their numbers, which would end in SIGSEGV."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from data_prep.checks.verify import verify
from data_prep.documents.document_set import DocumentSet, bucket_path, document_schema
from data_prep.documents.token_files import TokenFile, TokenReader
from data_prep.execution.executors import Executor
from data_prep.steps.step1_extract import EXTRACTED
from data_prep.steps.step3_tokens import TokenizeTask, tokenize
from megabert.foundation.errors import DataError
from megabert.tokens.masking import MaskingOptions, PieceTable, mask_instances
from megabert.tokens.shards.folder import read_manifest, write_manifest

OFFSETS, VALUES = 1, 3
VOCAB_SIZE = 2000


def overwrite(path, column, buffer, index, value):
    """Write one number of a column of the first record batch, in place."""
    content = pa.py_buffer(bytearray(path.read_bytes()))
    batch = pa.ipc.open_file(content).get_batch(0)
    part = batch[column].buffers()[buffer]
    width = np.dtype(np.int32 if buffer == OFFSETS else batch[column].type.value_type.to_pandas_dtype())
    start = part.address - content.address
    numbers = np.frombuffer(content, np.uint8)[start : start + part.size // width.itemsize * width.itemsize].view(width)
    numbers[index] = value
    path.write_bytes(content)


DAMAGE = [
    ("input_ids", OFFSETS, 3, 1 << 30),
    ("input_ids", OFFSETS, 3, -(1 << 30)),
    ("sentence_lengths", OFFSETS, 3, 1 << 30),
    ("sentence_lengths", OFFSETS, 3, 0),
    ("sentence_lengths", VALUES, 3, 1 << 31),
    ("sentence_lengths", VALUES, 3, 0),
    ("input_ids", VALUES, 3, 60_000),
]


@pytest.mark.parametrize(("column", "buffer", "index", "value"), DAMAGE)
def test_damaged_bucket_is_refused(own_copy, column, buffer, index, value):
    path = bucket_path(own_copy / "documents", "train", 1)
    overwrite(path, column, buffer, index, value)
    documents = DocumentSet.open(own_copy / "documents", "train", VOCAB_SIZE)
    with pytest.raises(DataError, match=r"train-00001\.arrow: missing or damaged \(.*\)\. Run the same"):
        documents.read(1)
    problems = verify(own_copy / "instances" / "64", Executor(), use_text=True).problems
    assert "documents/train-00001.arrow: missing or damaged" in problems[0]


@pytest.mark.parametrize(("column", "buffer", "index", "value"), DAMAGE)
def test_damaged_file_of_tokens_is_refused(own_copy, tmp_path, column, buffer, index, value):
    """The same columns on their way to the buckets, where only a range of a file is read."""
    schema, path = document_schema(VOCAB_SIZE), tmp_path / "tokens.arrow"
    with pa.ipc.open_file(bucket_path(own_copy / "documents", "train", 1)) as reader:
        batch = reader.get_batch(0)
    batch = batch.add_column(1, schema.field("split"), pa.array(np.zeros(len(batch), np.uint8)))
    with pa.ipc.new_file(str(path), schema) as writer:
        writer.write_batch(batch)
    overwrite(path, column, buffer, index, value)
    reader = TokenReader([TokenFile(path)], VOCAB_SIZE)
    with pytest.raises(DataError, match=r"tokens\.arrow: missing or damaged"):
        reader.read([0], 0, 1 << 64)


@pytest.mark.parametrize(
    "change",
    [
        *(lambda starts: starts[:, :2], lambda starts: starts[::-1], lambda starts: starts.astype(np.float64)),
        *(lambda starts: starts + (1 << 40) * (starts > 0), lambda starts: starts[:1]),
        *(b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'shape': (9999999999999999, 3)"),
    ],
)
def test_damaged_index_of_buckets_is_refused(own_copy, change):
    path = own_copy / "documents" / "train-buckets.npy"
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        np.save(path, change(np.load(path)))
    with pytest.raises(DataError, match=r"train-(buckets\.npy|00000\.arrow): missing or damaged"):
        DocumentSet.open(own_copy / "documents", "train", VOCAB_SIZE).read(0)


def test_damaged_text_is_not_tokenized(tmp_path, tokenizer_folder):
    """The last byte of a character is missing, and the loops would look for it."""
    text = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 5], np.int32)), pa.py_buffer(b"abc\xe2\x80"))
    sentences = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), text)
    batch = pa.record_batch([pa.array([1], pa.uint64()), pa.array([0], pa.uint16()), sentences], schema=EXTRACTED)
    with pa.ipc.new_file(str(tmp_path / "text.arrow"), EXTRACTED) as writer:
        writer.write_batch(batch)
    with pytest.raises(DataError, match=r"text\.arrow: missing or damaged"):
        tokenize(TokenizeTask(tmp_path / "text.arrow", tokenizer_folder, 0.1, tmp_path / "out.arrow"))


def test_manifest_that_names_no_such_bucket_is_refused(own_copy):
    folder = own_copy / "instances" / "64"
    manifest = read_manifest(folder)
    first = dataclasses.replace(manifest.shards[0], bucket=1 << 40)
    write_manifest(folder, dataclasses.replace(manifest, shards=[first, *manifest.shards[1:]]))
    (problem,) = verify(folder, Executor(), use_text=True).problems
    assert "of bucket 1099511627776 of 4" in problem


def test_masks_need_a_tokenizer_of_all_pieces():
    own = {"pieces": PieceTable(2, 3, 4, 100, np.zeros(50, bool)), "options": MaskingOptions(mask_unit="span")}
    with pytest.raises(DataError, match="tokenizer has 50 pieces"):
        mask_instances(np.array([2, 99, 3], np.uint16), np.array([0, 3]), keys=np.zeros(1, np.uint64), **own)
