"""Triton functions that kernels call: the hash of ``megabert.ops.dropout``, and exp2 and 1 / x in one instruction each.

The hash gives the same masks, bit for bit. To exp2 and 1 / x subnormal numbers count as zero: to treat them exactly
would take two more instructions around each. Triton's interpreter does not have these two and takes the exact ones.
"""

import os

import triton
import triton.language as tl
from triton.language.extra import libdevice

from megabert.randomness import lowbias32 as constants

IS_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
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


@triton.jit
def exp2(x):
    """Return 2**x of float32."""
    if IS_INTERPRETED:
        return tl.exp2(x)
    return libdevice.exp2(x)


@triton.jit
def reciprocal(x):
    """Return 1 / x of float32."""
    if IS_INTERPRETED:
        return 1.0 / x
    return libdevice.fast_dividef(tl.full(x.shape, 1.0, tl.float32), x)
