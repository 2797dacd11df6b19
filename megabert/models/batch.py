"""The packed micro-batch as models read it: sequences end to end in one row of tokens, and no padding in between."""

# T packed tokens, B sequences, M masked positions

from typing import Protocol

from torch import Tensor


class PackedBatch(Protocol):
    """The fields that a model reads, whoever holds them: ``data.batch.MicroBatch`` in training.

    The encoder needs tokens, positions, segments, boundaries and seeds; the pre-training heads need the labels besides.
    """

    input_ids_T: Tensor
    """Int64 token ids, with the masks of pre-training applied."""
    position_ids_T: Tensor
    """Int64 position of each token in its sequence, from 0."""
    segment_ids_T: Tensor
    """Int64, 0 in the first segment and 1 in the second."""
    cu_seqlens: Tensor
    """Int32 of shape (B + 1,), where each sequence starts. Tokens past the last boundary belong to no sequence."""
    masked_positions_M: Tensor
    """Int64 indices into the T tokens, the positions to predict."""
    masked_ids_M: Tensor
    """Int64, the original tokens there; -100 on padding."""
    next_sentence_label_B: Tensor
    """Int64, 1 where the second segment is a random one (or swapped, for SOP); -100 on padding and without NSP."""
    instance_seeds_B: Tensor
    """Int32 keys of dropout: they follow an instance to whatever rank and micro-batch the packing puts it."""
    max_seqlen: int
    """At least the length of the longest sequence."""
