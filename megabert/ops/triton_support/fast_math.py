"""exp2 and 1 / x in one instruction each on a GPU.

Subnormal numbers count as zero: to treat them exactly would take two more instructions around each. Triton's
interpreter does not have these functions and takes the exact ones.
"""

import os

import triton
import triton.language as tl
from triton.language.extra import libdevice

IS_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


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
