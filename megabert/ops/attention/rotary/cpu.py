"""The backends of ``rotary_attention`` that are torch's: in plain torch, and by its FlashAttention.

Each takes two steps, with a turned copy of queries and keys in between. In plain torch the second one is ``attention``,
or ``windowed_attention`` if a query sees near tokens only.

``torch.nn.attention.varlen`` is there to fall back to on a GPU: padded groups in plain torch take several times the
time and memory. torch does not promise that its gradients repeat bit for bit.
"""

# T packed tokens, N heads, H head width, E = H / 2 pairs of a head, C = 3 * N * H

from dataclasses import dataclass

import torch
from torch import Tensor

from megabert.ops.attention.dense.cpu import AttentionBlocks, DenseSequences, attention_torch
from megabert.ops.attention.windowed import Band, plan_band, windowed_attention
from megabert.ops.dropout import Heads


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


def rotary_attention_varlen(
    qkv_TC: Tensor, turns_T2E: Tensor, sequences: RotarySequences, heads: Heads, *, reach: int | None
) -> Tensor:
    """Run ``rotary_attention`` in 16 bits without dropout."""
    from torch.nn.attention.varlen import varlen_attn

    assert heads.dropout is None
    cu_seqlens, longest = sequences.cu_seqlens, sequences.max_seqlen
    # Rows of no sequence are neither read nor written there: without both selections they hold whatever memory held.
    is_in_sequence_T1 = (torch.arange(len(qkv_TC), device=qkv_TC.device) < cu_seqlens[-1])[:, None]
    turned_TC = turn(torch.where(is_in_sequence_T1, qkv_TC, qkv_TC.new_zeros(())), turns_T2E, num_heads=heads.num_heads)
    q_TNH, k_TNH, v_TNH = turned_TC.unflatten(1, (3, heads.num_heads, -1)).unbind(1)
    window = (-1, -1) if reach is None else (reach, reach)
    out_TNH = varlen_attn(q_TNH, k_TNH, v_TNH, cu_seqlens, cu_seqlens, longest, longest, window_size=window)
    assert isinstance(out_TNH, Tensor)
    return torch.where(is_in_sequence_T1, out_TNH.flatten(1), out_TNH.new_zeros(()))
