"""The backend of ``rotary_attention`` in plain torch.

It takes two steps, with a turned copy of queries and keys in between. The second one is ``attention``, or
``windowed_attention`` if a query sees near tokens only.
"""

# T packed tokens, N heads, H head width, E = H / 2 pairs of a head, C = 3 * N * H

from dataclasses import dataclass

import torch
from torch import Tensor

from megabert.ops.attention.dense.cpu import AttentionBlocks, DenseSequences, attention_torch
from megabert.ops.attention.dropout import Heads
from megabert.ops.attention.windowed import Band, plan_band, windowed_attention


@dataclass(frozen=True)
class RotarySequences:
    """The sequences of a micro-batch as the op reads them; the same for every layer."""

    cu_seqlens: Tensor
    """Int32 of shape (B + 1,), where each sequence starts."""
    max_seqlen: int
    """At least the longest length."""
    positions_P: Tensor
    """Positions that the table of turns has rows for: each token's, or 0, 1, 2 and so on for kernels."""
    blocks: AttentionBlocks | None = None
    """Layout of plain torch on a CPU, in layers whose queries see the whole sequence."""
    band: Band | None = None
    """Which tokens see each other in plain torch, in layers with a window."""


def rotary_attention_torch(
    qkv_TC: Tensor, turns_T2E: Tensor, sequences: RotarySequences, heads: Heads, *, reach: int | None
) -> Tensor:
    """Run ``rotary_attention`` on any device."""
    turned_TC = turn(qkv_TC, turns_T2E, num_heads=heads.num_heads)
    if reach is not None:
        # None if another backend was planned for, which then could not take the dtype.
        band = sequences.band or plan_band(sequences.cu_seqlens, sequences.positions_P, reach=reach)
        return windowed_attention(turned_TC, band, heads)
    dense = DenseSequences(sequences.cu_seqlens, sequences.max_seqlen, sequences.blocks)
    return attention_torch(turned_TC, dense, heads)


def turn(qkv_TC: Tensor, turns_T2E: Tensor, *, num_heads: int) -> Tensor:
    """Return queries, keys and values with queries and keys turned, in float32 or better, then rounded as before."""
    parts_T3N2E = qkv_TC.unflatten(-1, (3, num_heads, 2, -1))
    single = torch.promote_types(qkv_TC.dtype, torch.float32)
    first_T2NE, second_T2NE = parts_T3N2E[:, :2].to(single).unbind(3)
    cos_T11E, sin_T11E = turns_T2E[:, None, None].unbind(3)
    turned_T2N2E = torch.stack(
        [
            first_T2NE * cos_T11E - second_T2NE * sin_T11E,
            second_T2NE * cos_T11E + first_T2NE * sin_T11E,
        ],
        3,
    )
    return torch.cat([turned_T2N2E.to(qkv_TC.dtype), parts_T3N2E[:, 2:]], 1).flatten(1)
