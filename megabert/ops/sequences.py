"""Which sequence of a packed micro-batch a token is in."""

# N tokens, B sequences

import torch
from torch import Tensor


def sequence_numbers(cu_seqlens: Tensor, token_N: Tensor | int) -> Tensor:
    """Return the number of each token's sequence, of shape (N,); B for padding, which follows the last one.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts, and the last one's end.
        token_N: Indices of tokens, or how many first tokens.
    """
    if isinstance(token_N, int):
        token_N = torch.arange(token_N, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:].contiguous(), token_N.to(cu_seqlens.dtype), right=True)
