"""The backend of ``rotary_attention`` that calls torch's FlashAttention, ``torch.nn.attention.varlen``.

It is there to fall back to: padded groups in plain torch take several times the time and memory. Queries and keys are
turned by a pass before. torch does not promise that its gradients repeat bit for bit.
"""

# T packed tokens, N heads, H head width, C = 3 * N * H

import torch
from torch import Tensor

from megabert.ops.attention.dropout import Heads
from megabert.ops.attention.rotary.cpu import RotarySequences, turn


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
