"""Draws from categorical distributions without a random generator: the noise of a row is a hash of its key."""

# M rows, V categories

import torch
from torch import Tensor

from megabert.ops.dropout import GOLDEN, lowbias32_

CHUNK = {"cpu": 1 << 18, "cuda": 1 << 26}  # 1 MiB and 256 MiB in float32
"""Elements of noise that are made at once."""
_BITS = 23
"""Random bits of a draw: float32 has 24 significant ones, and half a step needs one."""


@torch.no_grad()
def sample(logits_MV: Tensor, keys_M: Tensor) -> Tensor:
    """Draw one category per row, as the largest of logit + Gumbel noise (Gumbel 1954; Maddison et al. 2014).

    The noise of category c is made of the upper 23 bits of ``lowbias32(key + c * 0x9E3779B9)``: half steps of 2**-23
    are exact in float32, so no uniform number is 0 or 1. The noise ends at 16.6, so very rare categories are drawn a
    little too rarely: a million of them with a probability of 1e-8 each by 1%.

    Args:
        logits_MV: Unnormalised scores in any floating dtype; -inf is never drawn.
        keys_M: Int32, one key per row.

    Returns:
        The categories, int64 of shape (M,).
    """
    rows, categories = logits_MV.shape
    step = max(1, CHUNK[logits_MV.device.type] // max(1, categories))
    offsets_V = torch.arange(categories, device=logits_MV.device, dtype=torch.int32).mul_(GOLDEN)
    drawn = [
        _draw(logits_MV[first : first + step], keys_M[first : first + step], offsets_V)
        for first in range(0, rows, step)
    ]
    return torch.cat(drawn) if drawn else keys_M.long()


def _draw(logits_RV: Tensor, keys_R: Tensor, offsets_V: Tensor) -> Tensor:
    """Draw for rows that are worked on at once."""
    bits_RV = lowbias32_(keys_R[:, None] + offsets_V) >> (32 - _BITS)  # signed: -2**22 to 2**22 - 1
    # The middle of one of 2**23 steps from 0 to 1. Gumbel noise is -log(-log(uniform)).
    uniform_RV = (bits_RV.float() + (2.0 ** (_BITS - 1) + 0.5)) * 2.0**-_BITS
    return (logits_RV.float() - uniform_RV.log_().neg_().log_()).argmax(1)
