"""What ``attention`` means, in plain torch: float32, or float64 for float64 input, one padded batch."""

# T packed tokens, N heads, H head width, D = N * H, C = 3 * D

import torch
from torch import Tensor

from megabert.ops.attention.dense.cpu import padded_attention
from megabert.ops.attention.dropout import AttentionDropout


def attention_reference(
    qkv_TC: Tensor, cu_seqlens: Tensor, *, max_seqlen: int, num_heads: int, dropout: AttentionDropout | None = None
) -> Tensor:
    """Return softmax(Q K^T / sqrt(H)) V per head and sequence; see ``api.attention``."""
    compute = torch.float64 if qkv_TC.dtype == torch.float64 else torch.float32
    return padded_attention(
        qkv_TC.to(compute), cu_seqlens, max_seqlen=max_seqlen, num_heads=num_heads, dropout=dropout
    ).to(qkv_TC.dtype)
