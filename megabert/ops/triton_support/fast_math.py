"""exp2 and 1 / x in one instruction on a GPU: subnormal numbers count as zero, which spares two more around each."""

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
