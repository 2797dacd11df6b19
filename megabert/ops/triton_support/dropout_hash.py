"""The hash of ``megabert.ops.dropout`` as a Triton function: the same masks, bit for bit."""

import triton
import triton.language as tl


@triton.jit
def lowbias32(x):
    """Hash uint32, as ``dropout.lowbias32``."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def is_kept(row_keys, columns, threshold):
    """Return which elements survive dropout.

    Args:
        row_keys: Int32.
        columns: Int32, broadcastable against ``row_keys``.
        threshold: ``Dropout.threshold``.
    """
    x = row_keys.to(tl.uint32, bitcast=True) + columns.to(tl.uint32, bitcast=True) * 0x9E3779B9
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    # the last xor-shift changes bits below the threshold's only
    return x.to(tl.int32, bitcast=True) >= threshold
