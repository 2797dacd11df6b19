"""Google's checkpoints: TensorFlow's tensor bundle read without TensorFlow, and its names as Hugging Face's.

A bundle is two files. ``NAME.data-00000-of-0000N`` holds the tensors' bytes; ``NAME.index`` is a LevelDB table
(``table_format.md`` of leveldb) from names to protocol buffers ``BundleEntryProto`` (``tensor_bundle.proto`` of
tensorflow) that say where. Only what such checkpoints hold is understood: floats, plain blocks, one slice a tensor.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from megabert.errors import CheckpointError

INDEX_PATTERN = "*.ckpt*.index"
"""``bert_model.ckpt.index``, or with the step, as a training leaves it: ``model.ckpt-1000.index``."""

NAMES = (
    (r"/", "."),
    (r"\blayer_(\d+)\b", r"layer.\1"),
    (r"\bkernel$", "weight"),  # transposed
    (r"\b((?:word|position|token_type)_embeddings)$", r"\1.weight"),
    (r"\bencoder\.embedding_hidden_mapping_in\b", "embeddings_project"),
    (r"\bcls\.predictions\.output_bias$", "cls.predictions.bias"),
    (r"\bcls\.seq_relationship\.output_weights$", "cls.seq_relationship.weight"),
    (r"\bcls\.seq_relationship\.output_bias$", "cls.seq_relationship.bias"),
)
"""Their name -> Hugging Face's, applied in order."""
OPTIMIZER = re.compile(r"(adam_[mv]|global_step|_CHECKPOINTABLE_OBJECT_GRAPH)")

_FOOTER_BYTES, _MAGIC = 48, 0xDB4775248B80FB57
_DTYPES = {1: "<f4", 2: "<f8"}


def find_index(folder: Path) -> Path | None:
    """Return the index of the one checkpoint in a folder, None where there is none or several."""
    found = list(folder.glob(INDEX_PATTERN))
    return found[0] if len(found) == 1 else None


def read_tensorflow(index: Path) -> dict[str, Tensor]:
    """Read a checkpoint of google-research/bert.

    Args:
        index: Such as ``bert_model.ckpt.index``, with its data files beside it.

    Returns:
        Float32 tensors by Hugging Face's names, the optimizer's left out.

    Raises:
        CheckpointError: The files are damaged, or in a form that google-research/bert does not write.
    """
    result = {}
    try:
        for name, entry in _entries(index.read_bytes()):
            if name and not OPTIMIZER.search(name):
                value = torch.from_numpy(_read_tensor(index, entry))
                result[_rename(name)] = value.T.contiguous() if name.endswith("kernel") else value
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise CheckpointError(f"{index}: cannot be read: {error}. Fetch the checkpoint's files again.") from None
    return result


def _rename(name: str) -> str:
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _read_tensor(index: Path, entry: dict[int, list[int | bytes]]) -> np.ndarray:
    """Read the bytes of a ``BundleEntryProto``: 1 dtype, 2 shape, 3 shard, 4 offset, 5 size."""
    number = int(entry.get(1, [0])[0])
    if number not in _DTYPES or 7 in entry:
        raise ValueError(f"a tensor of type {number} or in slices; only whole tensors of floats are read")
    dtype = np.dtype(_DTYPES[number])
    shape = [int(_fields(d).get(1, [0])[0]) for d in _fields(entry.get(2, [b""])[0]).get(2, [])]
    shard, offset, size = (int(entry.get(field, [0])[0]) for field in (3, 4, 5))
    stem = index.name.removesuffix(".index")
    (data,) = index.parent.glob(f"{stem}.data-{shard:05d}-of-*")
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.itemsize * count != size:
        raise ValueError(f"a tensor of shape {shape} has {size} bytes")
    return np.fromfile(data, dtype, count, offset=offset).astype(np.float32).reshape(shape)


def _entries(table: bytes) -> Iterator[tuple[str, dict[int, list[int | bytes]]]]:
    """Yield name and fields of every entry of a LevelDB table."""
    footer = table[-_FOOTER_BYTES:]
    if int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise ValueError("no index of a TensorFlow checkpoint")
    place = 0
    for _ in range(2):  # the handle of the meta index
        _, place = _varint(footer, place)
    for _, handle in _block(table, footer, place):
        for key, value in _block(table, handle, 0):
            yield key.decode(), _fields(value)


def _block(table: bytes, handle: bytes, place: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of the block at a handle (offset, size); a key repeats a part of the one before it."""
    offset, place = _varint(handle, place)
    size, _ = _varint(handle, place)
    block = table[offset : offset + size]
    if table[offset + size] != 0:
        raise ValueError("its blocks are compressed")
    end = len(block) - 4 * (int.from_bytes(block[-4:], "little") + 1)
    key, place = b"", 0
    while place < end:
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        length, place = _varint(block, place)
        key = key[:shared] + block[place : place + own]
        yield key, block[place + own : place + own + length]
        place += own + length


def _fields(message: int | bytes) -> dict[int, list[int | bytes]]:
    """Parse a protocol buffer into its fields by number; varints, fixed 32 bits and bytes."""
    assert isinstance(message, bytes)
    found: dict[int, list[int | bytes]] = {}
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        value: int | bytes
        if tag & 7 == 0:
            value, place = _varint(message, place)
        elif tag & 7 == 2:
            length, place = _varint(message, place)
            value, place = message[place : place + length], place + length
        elif tag & 7 == 5:
            value, place = message[place : place + 4], place + 4
        else:
            raise ValueError(f"a field of wire type {tag & 7}")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
