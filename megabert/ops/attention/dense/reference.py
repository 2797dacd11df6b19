"""What ``attention`` means, in plain torch: float32, or float64 for float64 input, one padded batch."""

# T packed tokens, N heads, H head width, D = N * H, C = 3 * D

from typing import Any

import torch
from torch import Tensor

from megabert.ops.attention.dense.cpu import DenseSequences, padded_attention


def attention_reference(qkv_TC: Tensor, sequences: DenseSequences, **options: Any) -> Tensor:
    """Return softmax(Q K^T / sqrt(H)) V per head and sequence; takes the options of ``cpu.padded_attention``."""
    compute = torch.promote_types(qkv_TC.dtype, torch.float32)
    return padded_attention(qkv_TC.to(compute), sequences, **options).to(qkv_TC.dtype)
