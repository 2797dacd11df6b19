"""Draws from categorical distributions without a generator: the noise of a row is a hash of its key."""

# M rows, V categories

import torch
from torch import Tensor

from megabert.ops.dropout import GOLDEN, lowbias32_

CHUNK = {"cpu": 1 << 18, "cuda": 1 << 26}
"""Elements of noise made at once."""
_BITS = 23


@torch.no_grad()
def sample(logits_MV: Tensor, keys_M: Tensor) -> Tensor:
    """Draw one category a row, as the largest of logit + Gumbel noise (Gumbel 1954; Maddison et al. 2014).

    The noise of category c is that of ``lowbias32(key + c * 0x9E3779B9)``, of which the upper 23 bits are kept: half
    steps of 2**-23 are exact in float32, so no draw is 0 or 1. The noise ends at 16.6; a row of a million categories
    of probability 1e-8 each would be drawn too rarely, by a share of 1e-2 of itself.

    Args:
        logits_MV: Any floating dtype; -inf is never drawn.
        keys_M: Int32, one a row.

    Returns:
        Int64 of shape (M,).
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
    bits_RV = lowbias32_(keys_R[:, None] + offsets_V) >> (32 - _BITS)  # keeps the sign: -2**22 to 2**22 - 1
    uniform_RV = (bits_RV.float() + (2.0 ** (_BITS - 1) + 0.5)) * 2.0**-_BITS
    return (logits_RV.float() - uniform_RV.log_().neg_().log_()).argmax(1)
