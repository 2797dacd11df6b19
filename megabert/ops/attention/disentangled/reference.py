"""What ``disentangled_attention`` means, in plain torch: float32, or float64 for float64 input, one padded batch."""

# T packed tokens, G sequences of a group, S tokens, N heads, H head width, D = N * H, C = 3 * D, P relative positions

import torch
from torch import Tensor

from megabert.ops.attention.dense.cpu import grouped_attention
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions, score_divisor
from megabert.ops.dropout import Heads
from megabert.ops.sequences import padded_groups


def disentangled_attention_reference(
    qkv_TC: Tensor, positions: RelativePositions, sequences: DisentangledSequences, heads: Heads
) -> Tensor:
    """Return softmax(scores) V per head and sequence: products with every position, gathered by distance."""
    compute, longest = torch.promote_types(qkv_TC.dtype, torch.float32), (positions.position_E.numel() + 1) // 2

    def products(x_NGSH: Tensor, position_PD: Tensor, row_SS: Tensor) -> Tensor:
        position_NPH = position_PD.to(compute).unflatten(1, (heads.num_heads, -1)).transpose(0, 1)
        product_NGSP = x_NGSH @ position_NPH[:, None].mT
        return product_NGSP.gather(-1, row_SS.expand(*product_NGSP.shape[:2], -1, -1))

    def scores(q_NGSH: Tensor, k_NGSH: Tensor) -> Tensor:
        index_S = torch.arange(q_NGSH.shape[2], device=q_NGSH.device)
        # Slots past the end of every sequence have distances that the table does not: any row does for them.
        distance_SS = (index_S[:, None] - index_S).clamp(1 - longest, longest - 1)
        row_SS = positions.position_E[distance_SS + longest - 1].long()
        scores_NGSS = q_NGSH @ k_NGSH.mT
        if positions.key_PD is not None:
            scores_NGSS = scores_NGSS + products(q_NGSH, positions.key_PD, row_SS)
        if positions.query_PD is not None:
            scores_NGSS = scores_NGSS + products(k_NGSH, positions.query_PD, row_SS.T).mT
        return scores_NGSS / score_divisor(q_NGSH.shape[-1], positions.kinds)

    sizes = {"tokens": len(qkv_TC), "max_seqlen": sequences.max_seqlen, "num_heads": heads.num_heads}
    groups = padded_groups(sequences.cu_seqlens, **sizes)
    context_TD = grouped_attention(qkv_TC.to(compute), groups, scores, heads)
    return context_TD.to(qkv_TC.dtype)
