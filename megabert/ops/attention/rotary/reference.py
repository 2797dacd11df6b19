"""What ``rotary_attention`` means, in plain torch: float32, or float64 for float64 input, one padded batch."""

# T packed tokens, E pairs of a head, D hidden, C = 3 * D

from typing import Any

import torch
from torch import Tensor

from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.dense.reference import attention_reference
from megabert.ops.attention.rotary.cpu import turn


def rotary_attention_reference(
    qkv_TC: Tensor, turns_T2E: Tensor, cu_seqlens: Tensor, *, max_seqlen: int, num_heads: int, **options: Any
) -> Tensor:
    """Return softmax(R(Q) R(K)^T / sqrt(H)) V per head and sequence, the turns by token; see ``api``."""
    compute = torch.promote_types(qkv_TC.dtype, torch.float32)
    turned_TC = turn(qkv_TC.to(compute), turns_T2E, num_heads=num_heads)
    sequences = DenseSequences(cu_seqlens, max_seqlen)
    return attention_reference(turned_TC, sequences, num_heads=num_heads, **options).to(qkv_TC.dtype)
