"""What ``rotary_attention`` means, in plain torch: float32, or float64 for float64 input, one padded batch."""

# T packed tokens, E pairs of a head, D hidden, C = 3 * D

import torch
from torch import Tensor

from megabert.ops.attention.dense.cpu import padded_attention
from megabert.ops.attention.dropout import AttentionDropout
from megabert.ops.attention.rotary.cpu import turn


def rotary_attention_reference(
    qkv_TC: Tensor,
    turns_T2E: Tensor,
    cu_seqlens: Tensor,
    *,
    max_seqlen: int,
    reach: int | None,
    num_heads: int,
    dropout: AttentionDropout | None = None,
) -> Tensor:
    """Return softmax(R(Q) R(K)^T / sqrt(H)) V per head and sequence, the turns by token; see ``api``."""
    compute = torch.float64 if qkv_TC.dtype == torch.float64 else torch.float32
    turned_TC = turn(qkv_TC.to(compute), turns_T2E, num_heads=num_heads)
    return padded_attention(
        turned_TC, cu_seqlens, max_seqlen=max_seqlen, num_heads=num_heads, dropout=dropout, reach=reach
    ).to(qkv_TC.dtype)
