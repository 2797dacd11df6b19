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
from megabert.randomness.keyed import mix, string_key

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
    num_instances = sum(s.size for _, s in parts)
    num_tokens = sum(int(c.lengths[s].sum()) for c, s in parts)
    num_masked = sum(int(c.masked_counts[s].sum()) for c, s in parts)
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
    masked_positions_M, masked_positions = new(size_M, num_masked, 0)
    masked_ids_M, masked_ids = new(size_M, num_masked, IGNORED)
    cu_seqlens, boundaries = new(size_B + 1, num_instances + 1, num_tokens, torch.int32)
    next_sentence_label_B, labels = new(size_B, num_instances, IGNORED)
    instance_seeds_B, keys = new(size_B, num_instances, 0, torch.int32)
    longest = _gather(parts, (ids, positions, segments, boundaries, masked_positions, masked_ids, labels))
    if not batch_format.has_labels:
        labels[:] = IGNORED
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
        max_seqlen=longest if padded is None else batch_format.max_seq_length,
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


def _gather(parts: Sequence[tuple[Columns, NDArray[np.int64]]], gathered: tuple[NDArray, ...]) -> int:
    """Fill arrays with the instances of all parts, end to end; return the longest one's tokens."""
    from megabert.data.gather_loops import gather_rows

    boundaries = gathered[3]
    boundaries[0] = b = t = m = 0
    for columns, rows in parts:
        gather_rows(columns.fields, rows, (b, t, m), gathered)
        b, t, m = b + rows.size, int(boundaries[b + rows.size]), m + int(columns.masked_counts[rows].sum())
    return int(np.diff(boundaries).max(initial=1))
