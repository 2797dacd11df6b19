"""What ``attention`` means, in plain torch: float32, or float64 for float64 input, one padded batch."""

# T packed tokens, N heads, H head width, D = N * H, C = 3 * D

import torch
from torch import Tensor

from megabert.ops.attention.dense.cpu import DenseSequences, padded_attention
from megabert.ops.dropout import Heads


def attention_reference(qkv_TC: Tensor, sequences: DenseSequences, heads: Heads, *, reach: int | None = None) -> Tensor:
    """Return softmax(Q K^T / sqrt(H)) V per head and sequence; takes the arguments of ``cpu.padded_attention``."""
    compute = torch.promote_types(qkv_TC.dtype, torch.float32)
    return padded_attention(qkv_TC.to(compute), sequences, heads, reach=reach).to(qkv_TC.dtype)
