"""What ``rotary_attention`` means, in plain torch: float32, or float64 for float64 input, one padded batch."""

# T packed tokens, E pairs of a head, D hidden, C = 3 * D

import torch
from torch import Tensor

from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.dense.reference import attention_reference
from megabert.ops.attention.rotary.cpu import turn
from megabert.ops.dropout import Heads


def rotary_attention_reference(
    qkv_TC: Tensor, turns_T2E: Tensor, sequences: DenseSequences, heads: Heads, *, reach: int | None
) -> Tensor:
    """Return softmax(R(Q) R(K)^T / sqrt(H)) V per head and sequence, the turns by token; see ``api``."""
    compute = torch.promote_types(qkv_TC.dtype, torch.float32)
    turned_TC = turn(qkv_TC.to(compute), turns_T2E, num_heads=heads.num_heads)
    return attention_reference(turned_TC, sequences, heads, reach=reach).to(qkv_TC.dtype)
