"""The hash of ``megabert.ops.dropout`` as a Triton function: the same masks, bit for bit."""

import triton
import triton.language as tl

from megabert.randomness import lowbias32 as constants

GOLDEN = tl.constexpr(constants.GOLDEN)
FIRST, SECOND = tl.constexpr(constants.FIRST), tl.constexpr(constants.SECOND)


@triton.jit
def lowbias32(x):
    """Hash uint32, as ``megabert.randomness.lowbias32``."""
    x ^= x >> 16
    x *= FIRST
    x ^= x >> 15
    x *= SECOND
    return x ^ (x >> 16)


@triton.jit
def is_kept(row_keys, columns, threshold):
    """Return which elements survive dropout.

    Args:
        row_keys: Keys of rows (tokens, or queries of one head), int32.
        columns: Numbers of columns, int32, of a shape that broadcasts against ``row_keys``.
        threshold: Smallest hash that survives, as a signed number: ``Dropout.threshold``.
    """
    x = row_keys.to(tl.uint32, bitcast=True) + columns.to(tl.uint32, bitcast=True) * GOLDEN
    x ^= x >> 16
    x *= FIRST
    x ^= x >> 15
    x *= SECOND
    # The last xor-shift changes only bits below those of the threshold: it is skipped.
    return x.to(tl.int32, bitcast=True) >= threshold
