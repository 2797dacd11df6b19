"""Packed micro-batches and their assembly from decoded columns, without a Python loop over instances."""

# T packed tokens, M masked positions, B sequences; a pad multiple of each may follow the real ones

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.data.packing import MicroShape
from megabert.data.shard_set import Columns
from megabert.masking.keyed_random import mix, string_key

IGNORED = -100
"""Label of padding, as in torch's cross entropy."""
_STAGE_SEEDS = string_key("data/instance_seeds")


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """What one rank's model reads in one micro-step: sequences end to end, then perhaps padding.

    Padding tokens (at ``cu_seqlens[-1]`` and behind) belong to no sequence; padded sequences are of length 0. A
    micro-batch without instances has at least one padding token, one padded sequence and one padded masked position.

    Attributes:
        input_ids_T: Int64 token ids, masks applied.
        position_ids_T: Int64, from 0 in each sequence.
        segment_ids_T: Int64, 0 up to the first [SEP], 1 in the second segment.
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts; the last is the number of real tokens.
        masked_positions_M: Int64, places in T to predict; 0 on padding.
        masked_ids_M: Int64, the original ids there; ``IGNORED`` on padding.
        next_sentence_label_B: Int64; ``IGNORED`` on padding and where the objective is ``none``.
        instance_seeds_B: Int32 keys of dropout, the same whatever the packing and the ranks.
        max_seqlen: Longest sequence; the phase's limit where shapes are padded.
        num_tokens: Real tokens.
        num_masked: Real positions to predict.
        num_instances: Real sequences.
    """

    input_ids_T: Tensor
    position_ids_T: Tensor
    segment_ids_T: Tensor
    cu_seqlens: Tensor
    masked_positions_M: Tensor
    masked_ids_M: Tensor
    next_sentence_label_B: Tensor
    instance_seeds_B: Tensor
    max_seqlen: int
    num_tokens: int
    num_masked: int
    num_instances: int

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "MicroBatch":
        """Return a copy on a device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "MicroBatch":
        """Return a copy in page-locked memory."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Callable[[Tensor], Tensor]) -> "MicroBatch":
        stored = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {n: function(v) if isinstance(v, Tensor) else v for n, v in stored.items()}
        return MicroBatch(**moved)


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive instances of a global batch that lie in the same decoded columns.

    Attributes:
        columns: Where they are.
        indices: Int64, their places in the columns.
        start: Ordinal in the global batch of the first.
    """

    columns: Columns
    indices: NDArray[np.int64]
    start: int

    def select(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places in the columns of those of the ascending ordinals that this piece holds."""
        first, stop = np.searchsorted(ordinals, [self.start, self.start + len(self.indices)])
        return self.indices[ordinals[first:stop] - self.start]


@dataclass(frozen=True, kw_only=True)
class BatchFormat:
    """What all micro-batches of a loader have in common.

    Attributes:
        pad_id: Token id of padding.
        max_seq_length: Stated as ``max_seqlen`` where shapes are padded, so that it never changes.
        has_labels: Whether ``next_sentence_label`` means anything.
        pin: Allocate in page-locked memory.
    """

    pad_id: int
    max_seq_length: int
    has_labels: bool
    pin: bool = False


def instance_seeds(seed: int, step: int, ordinals: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the dropout keys of instances from (seed, step, ordinal in the global batch) alone."""
    return (mix(_STAGE_SEEDS, seed, step, ordinals) >> np.uint64(32)).astype(np.uint32).view(np.int32)


def assemble(
    pieces: Sequence[Piece],
    ordinals: NDArray[np.int64],
    seeds: NDArray[np.int32],
    batch_format: BatchFormat,
    padded: MicroShape | None = None,
) -> MicroBatch:
    """Gather instances into one packed micro-batch.

    Args:
        pieces: All instances of the global batch, in order.
        ordinals: Which of them, ascending.
        seeds: Their dropout keys.
        batch_format: What all micro-batches have in common.
        padded: Pad to exactly this shape; None pads nothing but an empty micro-batch.
    """
    parts = [(p.columns, s) for p in pieces if (s := p.select(ordinals)).size]
    lengths = _join([c.lengths[s] for c, s in parts])
    masked_counts = _join([c.masked_counts[s] for c, s in parts])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    num_tokens, num_masked, num_instances = int(starts[-1]), int(masked_counts.sum()), len(lengths)
    if padded is None:
        size_T, size_B, size_M = max(1, num_tokens), max(1, num_instances), max(1, num_masked)
    else:
        size_T, size_B, size_M = padded.tokens, padded.sequences, padded.masked

    def new(size: int, used: int, filling: int, dtype: torch.dtype = torch.int64) -> tuple[Tensor, NDArray]:
        """Allocate a tensor, fill its padding, and return it with a view of its real part."""
        tensor = torch.empty(size, dtype=dtype, pin_memory=batch_format.pin)
        array = tensor.numpy()
        array[used:] = filling
        return tensor, array[:used]

    input_ids_T, ids = new(size_T, num_tokens, batch_format.pad_id)
    position_ids_T, positions = new(size_T, num_tokens, 0)
    segment_ids_T, segments = new(size_T, num_tokens, 0)
    np.subtract(np.arange(num_tokens), np.repeat(starts[:-1], lengths), out=positions)
    b_starts = _join([c.segment_b_starts[s] for c, s in parts])
    segments[:] = np.repeat(np.arange(2 * num_instances) & 1, np.stack([b_starts, lengths - b_starts], 1).ravel())
    masked_positions_M, masked_positions = new(size_M, num_masked, 0)
    masked_ids_M, masked_ids = new(size_M, num_masked, IGNORED)
    _copy_lists(parts, positions, ids, masked_positions, masked_ids)
    masked_positions += np.repeat(starts[:-1], masked_counts)  # of the instance -> of the batch

    cu_seqlens, boundaries = new(size_B + 1, num_instances + 1, num_tokens, torch.int32)
    boundaries[:] = starts
    next_sentence_label_B, labels = new(size_B, num_instances, IGNORED)
    labels[:] = _join([c.next_sentence_labels[s] for c, s in parts]) if batch_format.has_labels else IGNORED
    instance_seeds_B, keys = new(size_B, num_instances, 0, torch.int32)
    keys[:] = seeds
    return MicroBatch(
        input_ids_T=input_ids_T,
        position_ids_T=position_ids_T,
        segment_ids_T=segment_ids_T,
        cu_seqlens=cu_seqlens,
        masked_positions_M=masked_positions_M,
        masked_ids_M=masked_ids_M,
        next_sentence_label_B=next_sentence_label_B,
        instance_seeds_B=instance_seeds_B,
        max_seqlen=int(lengths.max(initial=1)) if padded is None else batch_format.max_seq_length,
        num_tokens=num_tokens,
        num_masked=num_masked,
        num_instances=num_instances,
    )


def probe_batch(*, tokens: int, length: int) -> MicroBatch:
    """Return a full micro-batch of the [UNK]-like token 1, to find out whether that many tokens fit into memory.

    Args:
        tokens: All of them real, in sequences of full length and perhaps a shorter one.
        length: Longest sequence. 20 of 128 tokens are predicted, as in BERT's recipe.
    """
    starts = torch.tensor([*range(0, tokens, length), tokens])
    masked = torch.arange(tokens * 20 // 128 + 1) * 6
    num_instances = len(starts) - 1
    return MicroBatch(
        input_ids_T=torch.ones(tokens, dtype=torch.int64),
        position_ids_T=torch.arange(tokens) % length,
        segment_ids_T=(torch.arange(tokens) % length >= length // 2).long(),
        cu_seqlens=starts.int(),
        masked_positions_M=masked.clamp(max=tokens - 1),
        masked_ids_M=torch.ones(len(masked), dtype=torch.int64),
        next_sentence_label_B=torch.zeros(num_instances, dtype=torch.int64),
        instance_seeds_B=torch.zeros(num_instances, dtype=torch.int32),
        max_seqlen=min(length, tokens),
        num_tokens=tokens,
        num_masked=len(masked),
        num_instances=num_instances,
    )


def _copy_lists(
    parts: Sequence[tuple[Columns, NDArray[np.int64]]],
    positions: NDArray,
    ids: NDArray,
    masked_positions: NDArray,
    masked_ids: NDArray,
) -> None:
    """Fill the last three with the lists of all parts' instances, end to end; ``positions`` are those of the tokens."""
    t = m = 0
    for columns, selected in parts:
        source = np.repeat(columns.token_starts[selected], columns.lengths[selected])
        source += positions[t : t + source.size]
        ids[t : t + source.size] = columns.input_ids[source]
        t += source.size
        source = _ranges(columns.masked_starts[selected], columns.masked_counts[selected])
        masked_positions[m : m + source.size] = columns.masked_positions[source]
        masked_ids[m : m + source.size] = columns.masked_ids[source]
        m += source.size


def _join(arrays: list[NDArray]) -> NDArray[np.int64]:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return start, start + 1, ..., start + count - 1 for each pair, end to end."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if ends.size else 0) + np.repeat(starts - (ends - counts), counts)
