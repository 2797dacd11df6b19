"""Packed micro-batches and their assembly from decoded instances, without a Python loop over instances.

Instances come from shards, or are made of any sequences, for fine-tuning and for using a model. For example, three
instances, the second and third of which have the predictions of 7 and of 9 and 4 (id 1 is [CLS], 2 [SEP], 3 [MASK]):

    input_ids              segment_b_start  masked_lm_positions  masked_lm_ids  next_sentence_label
    1 5 2 6 2              3                                                    0
    1 3 8 2 9 2            4                1                    7              1
    1 5 2 3 3 2            3                3 4                  9 4            0

become one micro-batch without padding:

    input_ids_T            1 5 2 6 2  1 3 8 2 9 2  1 5 2 3 3 2
    position_ids_T         0 1 2 3 4  0 1 2 3 4 5  0 1 2 3 4 5
    segment_ids_T          0 0 0 1 1  0 0 0 0 1 1  0 0 0 1 1 1
    cu_seqlens             0 5 11 17                             # where each sequence starts, and the end
    masked_positions_M     6 14 15                               # counted in the packed tokens
    masked_ids_M           7 9 4
    next_sentence_label_B  0 1 0

Padded to 18 tokens, 4 sequences and 5 predictions, ``input_ids_T`` gets one more 0, ``cu_seqlens`` one more 17,
``masked_positions_M`` 0 0, ``masked_ids_M`` -100 -100 and ``next_sentence_label_B`` -100.
"""

# T packed tokens, M masked positions, B sequences; padding may follow the real ones of each

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.data.packing import MicroShape
from megabert.foundation.randomness.keyed import mix, string_key
from megabert.ops.sequences import PackedBatch
from megabert.tokens.shards.columns import FlatInstances

IGNORED = -100
"""The label of padding, which torch's cross entropy leaves out."""
_SEEDS_KEY = string_key("data/instance_seeds")


@dataclass(frozen=True, eq=False)
class MicroBatch(PackedBatch):
    """The input of one rank's model in one micro-step: sequences end to end, then perhaps padding.

    A micro-batch without instances has at least one padding token, one padding sequence and one padding position. The
    labels are those of pre-training; fine-tuning keeps its own next to the micro-batch, in a ``TaskBatch``.
    """

    num_tokens: int
    """Number of real tokens."""
    num_masked: int
    """Number of real positions to predict."""
    num_instances: int
    """Number of real sequences."""

    def to(self, device: torch.device | str) -> "MicroBatch":
        """Return a copy on a device, for which the host does not wait."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        moved: dict[str, Any] = {name: sent_to(device, tensor) for name, tensor in tensors.items()}
        return replace(self, **moved)


def sent_to(device: torch.device | str, tensor: Tensor) -> Tensor:
    """Return a copy of a tensor on a device; it is under way when this returns.

    A GPU copies from page-locked memory while the host continues. From other memory the host waits until the GPU has
    done all that it was given before.
    """
    on_gpu = torch.device(device).type == "cuda"
    return (tensor.pin_memory() if on_gpu else tensor).to(device, non_blocking=True)


_TENSORS = [field.name for field in fields(PackedBatch) if field.type is Tensor]
PackedArrays: Any = namedtuple("PackedArrays", _TENSORS)  # type: ignore[misc]
"""The real, unpadded part of a micro-batch's tensors as numpy arrays, for the loop that fills them."""


@dataclass(frozen=True, kw_only=True)
class BatchFormat:
    """The properties that all micro-batches of a loader share.

    Attributes:
        pad_id: Token id of padding.
        max_seq_length: Stated as ``max_seqlen`` if shapes are padded, so that it never changes.
        has_labels: Whether the shards' ``next_sentence_label`` means anything.
        pin: Whether tensors are allocated in page-locked memory.
    """

    pad_id: int
    max_seq_length: int
    has_labels: bool
    pin: bool = False


def instance_seeds(seed: int, number: int, ordinals: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the dropout keys of instances from (seed, number of the batch, ordinal in the global batch) alone."""
    # The upper half of each 64-bit hash, as the 32 signed bits that torch and the kernels take.
    return (mix(_SEEDS_KEY, seed, number, ordinals) >> np.uint64(32)).astype(np.uint32).view(np.int32)


def assemble_batch(
    columns: FlatInstances,
    indices: NDArray[np.int64],
    seeds: NDArray[np.int32],
    batch_format: BatchFormat,
    padded: MicroShape | None = None,
    *,
    offsets: NDArray[np.int64] | None = None,
) -> MicroBatch:
    """Gather instances into one packed micro-batch.

    Args:
        columns: Decoded instances.
        indices: The instances of this micro-batch, in order.
        seeds: Their dropout keys.
        batch_format: The properties that all micro-batches share.
        padded: The exact shape to pad to. None pads nothing but a micro-batch without instances.
        offsets: Added to the positions of each instance, except for its first token's; None adds nothing.
    """
    from megabert.data.packing_loops import gather_rows

    # The real sizes, and the sizes with padding.
    lengths, masked_counts = (
        starts[indices + 1] - starts[indices] for starts in (columns.token_starts, columns.masked_starts)
    )
    real = MicroShape(tokens=int(lengths.sum()), sequences=indices.size, masked=int(masked_counts.sum()))
    one = MicroShape(tokens=max(1, real.tokens), sequences=max(1, real.sequences), masked=max(1, real.masked))
    tensors, packed = _allocate(real, padded or one, batch_format)
    gather_rows(columns, indices, packed)
    packed.instance_seeds_B[:] = seeds
    if offsets is not None:
        packed.position_ids_T[:] += np.repeat(offsets, lengths)
        packed.position_ids_T[packed.cu_seqlens[:-1]] = 0
    if not batch_format.has_labels:
        packed.next_sentence_label_B[:] = IGNORED
    return MicroBatch(
        **tensors,
        max_seqlen=int(np.diff(packed.cu_seqlens).max(initial=1)) if padded is None else batch_format.max_seq_length,
        num_tokens=real.tokens,
        num_masked=real.masked,
        num_instances=real.sequences,
    )


def _allocate(real: MicroShape, shape: MicroShape, batch_format: BatchFormat) -> tuple[dict[str, Tensor], Any]:
    """Return a micro-batch's tensors with their padding filled, and views of the real part, which the caller fills."""
    sizes = {  # tensor: size, real size, value of the padding
        "input_ids_T": (shape.tokens, real.tokens, batch_format.pad_id),
        "position_ids_T": (shape.tokens, real.tokens, 0),
        "segment_ids_T": (shape.tokens, real.tokens, 0),
        "cu_seqlens": (shape.sequences + 1, real.sequences + 1, real.tokens),
        "masked_positions_M": (shape.masked, real.masked, 0),
        "masked_ids_M": (shape.masked, real.masked, IGNORED),
        "next_sentence_label_B": (shape.sequences, real.sequences, IGNORED),
        "instance_seeds_B": (shape.sequences, real.sequences, 0),
    }
    tensors, views = {}, {}
    for name, (size, used, filling) in sizes.items():
        dtype = torch.int32 if name in ("cu_seqlens", "instance_seeds_B") else torch.int64
        tensors[name] = torch.empty(size, dtype=dtype, pin_memory=batch_format.pin)
        array = tensors[name].numpy()  # a view: it fills the tensor
        array[used:] = filling
        views[name] = array[:used]
    return tensors, PackedArrays(**views)


def columns_of(
    sequences: Sequence[NDArray[np.integer]],
    segment_b_starts: Sequence[int] | None = None,
    *,
    mask_id: int | None = None,
) -> FlatInstances:
    """Return sequences in the form in which instances are decoded from shards, without labels.

    Args:
        sequences: Ids of each, special tokens included; one or more, none empty.
        segment_b_starts: For each the index of segment B's first token; its length (the default) if there is no B.
        mask_id: Positions that hold this id are the masked positions; None masks nothing.
    """
    lengths = np.array([len(ids) for ids in sequences], np.int64)
    ids_T = np.concatenate(sequences)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    masked_M = np.flatnonzero(ids_T == mask_id) if mask_id is not None else np.empty(0, np.int64)
    sequence_M = np.searchsorted(starts, masked_M, side="right") - 1
    masked_starts = np.searchsorted(masked_M, starts)
    return FlatInstances(
        token_starts=starts,
        input_ids=ids_T,
        segment_b_starts=lengths if segment_b_starts is None else np.asarray(segment_b_starts, np.int64),
        masked_positions=masked_M - starts[sequence_M],
        masked_ids=np.full(len(masked_M), IGNORED),
        masked_starts=masked_starts,
        masked_id_starts=masked_starts,
        next_sentence_labels=np.full(len(lengths), IGNORED),
        rows=np.arange(len(lengths)),
    )


def pack_sequences(
    sequences: Sequence[NDArray[np.integer]],
    *,
    segment_b_starts: Sequence[int] | None = None,
    mask_id: int | None = None,
) -> MicroBatch:
    """Pack whole sequences end to end into one micro-batch, without labels and without padding.

    Args:
        sequences: As in `columns_of`.
        segment_b_starts: As in `columns_of`.
        mask_id: Positions that hold this id become the ``masked_positions_M``; with None there is one ignored position.
    """
    columns = columns_of(sequences, segment_b_starts, mask_id=mask_id)
    batch_format = BatchFormat(pad_id=0, max_seq_length=int(columns.lengths.max()), has_labels=False)
    seeds = np.zeros(len(sequences), np.int32)
    return assemble_batch(columns, columns.rows, seeds, batch_format)


def probe_batch(*, tokens: int, length: int, masked_share: float | None = None) -> MicroBatch:
    """Return a full micro-batch that repeats one token, to find out whether ``tokens`` fit into memory.

    Args:
        tokens: Packed tokens, all of them real, in sequences of full length and perhaps a shorter one.
        length: Length of a full sequence.
        masked_share: Share of the tokens that is predicted; 20 of 128 at least, as in BERT's recipe.
    """
    sequences = [np.ones(min(length, tokens - start), np.int64) for start in range(0, tokens, length)]
    # One segment each: RoBERTa has no embedding of a second one.
    batch = pack_sequences(sequences, segment_b_starts=[len(sequence) for sequence in sequences])
    share = max(masked_share or 0.0, 20 / 128)
    masked_M = torch.arange(int(tokens * share) + 1) * int(1 / share)
    return replace(
        batch,
        masked_positions_M=masked_M.clamp(max=tokens - 1),
        masked_ids_M=torch.ones_like(masked_M),
        next_sentence_label_B=torch.zeros_like(batch.next_sentence_label_B),
        num_masked=len(masked_M),
    )
