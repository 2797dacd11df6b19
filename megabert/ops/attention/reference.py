"""What ``attention`` means, in plain torch: float32, or float64 for float64 input, one padded batch."""

# B sequences, S tokens, T packed tokens, N heads, H head width, D = N * H

import math

import torch
from torch import Tensor

from megabert.ops.dropout import Dropout, keep_mask


def attention_reference(
    qkv_TC: Tensor, cu_seqlens: Tensor, *, max_seqlen: int, num_heads: int, dropout: Dropout | None = None
) -> Tensor:
    """Return softmax(Q K^T / sqrt(H)) V per head and sequence; see ``api.attention``."""
    compute = torch.float64 if qkv_TC.dtype == torch.float64 else torch.float32
    return padded_attention(
        qkv_TC.to(compute), cu_seqlens, max_seqlen=max_seqlen, num_heads=num_heads, dropout=dropout
    ).to(qkv_TC.dtype)


def padded_attention(
    qkv_TC: Tensor, cu_seqlens: Tensor, *, max_seqlen: int, num_heads: int, dropout: Dropout | None
) -> Tensor:
    """Attend in the dtype of the input over one batch padded to ``max_seqlen``.

    The host does not read the lengths, so a GPU need not be waited for. Two index arrays do the packing: ``source_BS``
    says which token a slot of the padded batch reads, ``target_BS`` which row of the result it writes.

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D).
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts.
        max_seqlen: At least the longest length.
        num_heads: N.
        dropout: Dropout of the probabilities, with row keys of shape (T, N); None drops nothing.

    Returns:
        Shape (T, D); zero at tokens of no sequence.
    """
    tokens, width = qkv_TC.shape[0], qkv_TC.shape[1] // 3
    # Slots behind the end of a sequence read token 0; masks below keep them out of every sum.
    starts_B, ends_B = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    offset_S = torch.arange(max_seqlen, device=qkv_TC.device)
    index_BS = starts_B[:, None] + offset_S
    real_BS = index_BS < ends_B[:, None]
    source_BS = torch.where(real_BS, index_BS, 0)
    q_BNSH, k_BNSH, v_BNSH = qkv_TC[source_BS].unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    scores_BNSS = q_BNSH @ k_BNSH.transpose(-1, -2) / math.sqrt(q_BNSH.shape[-1])
    # The softmax of 16-bit scores is taken in float32. The mask is a finite number: a padded sequence of length 0 has
    # no real key, and -inf would make its softmax NaN.
    scores_BNSS = scores_BNSS.float() if scores_BNSS.dtype.itemsize == 2 else scores_BNSS
    scores_BNSS = scores_BNSS.masked_fill(~real_BS[:, None, None, :], -1e30)
    probabilities_BNSS = scores_BNSS.softmax(-1)
    if dropout is not None:
        keys_BNS = dropout.row_keys[source_BS].transpose(1, 2)
        probabilities_BNSS = probabilities_BNSS * keep_mask(dropout, keys_BNS, max_seqlen) * dropout.scale
    context_BSNH = (probabilities_BNSS.to(v_BNSH.dtype) @ v_BNSH).transpose(1, 2)
    # Slots without a token write to a row past the end, which is cut off.
    target_BS = torch.where(real_BS, index_BS, tokens)
    out_TD = qkv_TC.new_zeros(tokens + 1, width)
    return out_TD.index_put((target_BS,), context_BSNH.flatten(2))[:tokens]
