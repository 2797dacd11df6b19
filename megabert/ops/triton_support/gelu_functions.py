"""Triton functions of GELU and its derivative, which kernels of several ops call.

GELU(h) is h times a gate between 0 and 1:

    erf form:  y = h * Phi(h), dy/dh = Phi(h) + h * phi(h), Phi and phi the normal distribution and its density
    tanh form: y = h * s, s = sigmoid(2u), u = sqrt(2/pi) (h + 0.044715 h^3), dy/dh = s + h s (1 - s) 2u'

The tanh form is usually written with (1 + tanh(u)) / 2, which is sigmoid(2u); that needs no subtraction.

Phi is computed from its tail, 1 - Phi(|h|) = exp(-h^2 / 2) t series(t) with t = 1 / (1 + p |h|), the form of
Abramowitz & Stegun 7.1.26. The polynomials were fitted to a relative error of 3e-7 at every h, for 16-bit tensors to
1e-4. The tail shares its exponential with phi and has no cancellation far below zero; CUDA's erf takes more
instructions than memory leaves time for.
"""

import triton
import triton.language as tl

from megabert.ops.triton_support.device_functions import exp2, reciprocal


@triton.jit
def gelu_gate_and_density(
    h,  # input of GELU, float32
    APPROXIMATE: tl.constexpr,  # tanh form instead of erf form
    IS_SHORT: tl.constexpr,  # whether the tensors are 16-bit, for which a shorter series is exact enough
):
    """Return the gate that multiplies h and, in the erf form, exp(-h^2 / 2), which its derivative needs as well."""
    if APPROXIMATE:
        # sigmoid(2u) = 1 / (1 + 2^(-2u * log2(e))), and 2 * sqrt(2 / pi) * log2(e) = 2.302208198
        return reciprocal(1.0 + exp2(-2.302208198 * h * (1.0 + 0.044715 * h * h))), h
    density = exp2(-0.7213475204444817 * h * h)  # log2(e) / 2
    if IS_SHORT:
        t = reciprocal(1.0 + 0.4 * tl.abs(h))
        series = 0.120579638 + t * (0.14404988 + t * -0.0847606321)
        series = 0.159572779 + t * (0.160510799 + t * series)
    else:
        t = reciprocal(1.0 + 0.28 * tl.abs(h))
        series = -0.0936265765 + t * 0.0247285984
        series = 0.072794825 + t * (-0.0064924782 + t * (0.0924808154 + t * series))
        series = 0.111703858 + t * (0.111699768 + t * (0.103085303 + t * (0.0836258022 + t * series)))
    # The tail is Phi(h) for a negative h, and 1 - Phi(h) for a positive one.
    tail = t * series * density
    return tl.where(h >= 0.0, 1.0 - tail, tail), density


@triton.jit
def gelu_derivative(
    h,  # input of GELU, float32
    gate,  # the results of ``gelu_gate_and_density``...
    density,  # ...for it
    APPROXIMATE: tl.constexpr,  # tanh form instead of erf form
):
    """Return GELU'(h)."""
    if APPROXIMATE:
        slope = 1.5957691216057308 * (1.0 + 0.134145 * h * h)  # 2u'; 2 * sqrt(2 / pi) and 3 * 0.044715
        return gate + h * gate * (1.0 - gate) * slope
    return gate + h * density * 0.3989422804014327  # 1 / sqrt(2 pi)
