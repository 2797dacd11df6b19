"""Products in 8 bits with a scale per row: a dense layer's output and its input's gradient (``precision: fp8``).

Both factors are rounded to e4m3: 4 significant bits, from 2^-9 to 448. All else is as in bf16, the weight's gradient
included, as in torchao's recipe ``rowwise_with_gw_hp``. A row of the left factor is a token, of the right factor an
output. A row's scale is the smallest power of two that brings its largest value into range:

- Neither packing nor ranks matter, nothing saturates, and there is no history to keep in a checkpoint.
- Scaling rounds nothing. A value keeps the same 4 bits whatever its row, down to 2^-13 of the row's largest one. So the
  weight is the same in both products, although its rows are outputs in one and inputs in the other.

NaN stays NaN and infinity divided by its own scale becomes NaN, so the products of such a row are NaN and the step is
skipped.

On a CPU the rounded values are multiplied in bf16, which holds them exactly, and added up in float32. On a GPU a kernel
rounds a row in one pass (``triton_support.row_casts``), and ``torch._scaled_mm`` multiplies and adds up in float32: the
same numbers but for the order of sums. No GPU has run it yet.

A kernel of LayerNorm or GELU has whole rows at hand, of a product's left factor. It casts them as it stores them, and
leaves the cast at a node of autograd's graph, where the product fetches it. This is in the order of the calls:

    dense                       its node is marked: ``takes_cast``
    LayerNorm or GELU           `product_before` finds that node: so the next product will be in 8 bits as well
                                `leave` at its own node: the cast of its result
    the next dense              `fetch`
    and in the backward pass
    LayerNorm or GELU           `leave` at the node of the dense layer before it: the cast of its input's gradient
    dense                       `fetch`

A product that finds no cast makes it, of the same 16 bits: attention's results, and whenever something stands between
the two, such as dropout, or the hooks of ZeRO-3. A GPU on which the first run finds that kernels cast wrong has torch's
own operations for all casts.
"""

# T tokens, I inputs, O outputs, K the inner dimension: the product is left_TK right_OK^T; R rows of either

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.backend import choose

CAPABILITY = (8, 9)
"""Compute capability from which on a GPU multiplies in 8 bits."""
MULTIPLE = 16
"""``_scaled_mm`` takes sizes that are multiples of this; tokens are padded to one, widths have to be one."""
TYPE = torch.float8_e4m3fn
"""The type of activations, weights and gradients. With a scale per row, e5m2's larger range is of no use."""
MANTISSA = 2**23 - 1
"""The bits of a float32 below its exponent."""
Cast = tuple[Tensor, Tensor]
"""Rows in an 8-bit type, perhaps followed by rows of any content up to ``MULTIPLE``, and the scale of each."""


def scales_of(rows_RK: Tensor) -> Tensor:
    """Return the scale of each row, a power of two, float32 of shape (R, 1); values are divided by it.

    Args:
        rows_RK: Rows, in any floating-point type.
        dtype: An 8-bit type.
    """
    largest_R1 = rows_RK.abs().amax(1, keepdim=True).float()
    quotient_R1 = (largest_R1 / torch.finfo(TYPE).max).clamp(min=torch.finfo(torch.float32).tiny)
    # The next power of two is a float32 whose mantissa is 0. All operations are exact, so every device agrees.
    return ((quotient_R1.view(torch.int32) + MANTISSA) & ~MANTISSA).view(torch.float32)


def cast_rows(rows_RK: Tensor) -> Cast:
    """Return rows in an 8-bit type, contiguous, and their scales, float32 of shape (R, 1)."""
    scales_R1 = scales_of(rows_RK)
    return (rows_RK / scales_R1.to(rows_RK.dtype)).to(TYPE).contiguous(), scales_R1


def row_product(
    left_TK: Tensor,
    right_OK: Tensor,
    bias_O: Tensor | None = None,
    *,
    left_cast: Cast | None = None,
    right_cast: Cast | None = None,
) -> Tensor:
    """Return left right^T + bias, of shape (T, O) in the type of the left factor; both are rounded to 8 bits.

    Args:
        left_TK: Activations, or gradients.
        right_OK: Weight; for the gradient of the input its transpose.
        bias_O: Bias; None adds none.
        dtype: 8-bit type of the left factor.
        left_cast: The left factor's cast, if there is one already.
        right_cast: The right factor's.
    """
    left_cast = left_cast or cast_factor(left_TK)
    right_cast = right_cast or cast_factor(right_OK)
    multiply = _on_gpu if _is_on_gpu(left_TK) else _on_cpu
    return multiply(left_cast, right_cast, bias_O, left_TK.dtype)[: len(left_TK)]


def _is_on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


def _on_cpu(left: Cast, right: Cast, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
    left_TK, right_OK = (rows8.to(dtype) * scales.to(dtype) for rows8, scales in (left, right))  # exact in 16 bits, too
    return functional.linear(left_TK, right_OK, bias_O)


def _on_gpu(left: Cast, right: Cast, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
    if bias_O is not None and not _adds_bias(bias_O.device):
        return _scaled_product(left, right, None, dtype) + bias_O
    return _scaled_product(left, right, bias_O, dtype)


@functools.cache
def _adds_bias(device: torch.device) -> bool:
    """Whether products by rows take a bias: the library that has them depends on the card and on CUDA."""
    ones = torch.ones(MULTIPLE, MULTIPLE, dtype=torch.bfloat16, device=device)
    cast = cast_rows(ones)
    try:
        _scaled_product(cast, cast, ones[0], torch.bfloat16)
    except RuntimeError:
        return False
    return True


def _scaled_product(left: Cast, right: Cast, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
    # The left factor is row-major, the right one column-major; both scales are contiguous, (T, 1) and (1, O).
    return torch._scaled_mm(
        left[0],
        right[0].t(),
        scale_a=left[1],
        scale_b=right[1].t(),
        bias=bias_O,
        out_dtype=dtype,
        use_fast_accum=False,  # on Hopper fast sums keep about 14 bits
    )


def cast_factor(rows_RK: Tensor) -> Cast:
    """Return the cast of a product's factor."""
    if not _is_on_gpu(rows_RK):
        return cast_rows(rows_RK)
    return choose("fp8_casts", "auto", "cuda")(rows_RK)


def cast_rows_torch(rows_RK: Tensor) -> Cast:
    """Return `cast_rows`, with rows of zeros up to the multiple that products ask for."""
    return cast_rows(functional.pad(rows_RK, (0, 0, 0, -len(rows_RK) % MULTIPLE)))


def reset_casts(weight: Tensor) -> None:
    """Forget the casts of a weight, which has changed; its next use makes new ones, kept until this is called again."""
    weight.kept_casts = {}  # type: ignore[attr-defined]


def cast_weight(weight_OI: Tensor, kept: dict[bool, Cast] | None, *, transposed: bool = False) -> Cast:
    """Return the cast of a weight or of its transpose, from the ``kept_casts`` of the weight if it has any."""
    kept = {} if kept is None else kept
    if transposed not in kept:
        kept[transposed] = cast_factor(weight_OI.t() if transposed else weight_OI)
    return kept[transposed]


def product_before(x: Tensor) -> Any | None:
    """Return the node of the dense layer in 8 bits whose output a tensor is; None if it is not, or torch casts."""
    if not getattr(x.grad_fn, "takes_cast", False) or choose("fp8_casts", "auto", "cuda") is cast_rows_torch:
        return None
    return x.grad_fn


def leave(node: Any, cast: Cast, gradient: Tensor | None = None) -> None:
    """Leave at a node the cast of its first result, or of the gradient of that result."""
    node.cast_left = (gradient, cast)


def fetch(node: Any, gradient: Tensor | None = None) -> Cast | None:
    """Take the cast that was left at a node, unless it is of another gradient, such as one part of a sum."""
    of, cast = getattr(node, "cast_left", (None, None))
    if cast is not None:
        node.cast_left = (None, None)
    return cast if of is gradient else None


def row_product_reference(left_TK: Tensor, right_OK: Tensor) -> Tensor:
    """Return left right^T by the definition, in float64: each value to the nearest that the 8-bit type has."""
    return _rounded(left_TK.double()) @ _rounded(right_OK.double()).t()


def _rounded(rows_RK: Tensor) -> Tensor:
    info = torch.finfo(TYPE)
    scales_R1 = torch.exp2(torch.ceil(torch.log2(rows_RK.abs().amax(1, keepdim=True) / info.max)))
    scales_R1 = torch.where(scales_R1 == 0, 1, scales_R1)
    scaled_RK = rows_RK / scales_R1
    # The distance of neighbours is eps below 2 and doubles from power to power; below the smallest normal it stays.
    powers_RK = torch.exp2(torch.floor(torch.log2(scaled_RK.abs().clamp(min=info.smallest_normal))))
    return torch.round(scaled_RK / (info.eps * powers_RK)) * (info.eps * powers_RK) * scales_R1


def obstacle(device: torch.device, widths: Iterable[int]) -> str | None:
    """Return why a device cannot multiply matrices of these widths in 8 bits; None if it can.

    Args:
        device: A CPU can; a GPU is asked by one product per width.
        widths: Inner and outer dimensions of dense layers.
    """
    if device.type != "cuda":
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}, below 8.9"
    for width in sorted(set(widths)):
        if width % MULTIPLE:
            return f"a width of {width} is no multiple of {MULTIPLE}"
        ones = torch.ones(MULTIPLE, width, dtype=torch.bfloat16, device=device)
        try:
            row_product(ones, ones)
        except RuntimeError as error:
            return f"torch._scaled_mm refuses a product: {error}"
    return None
