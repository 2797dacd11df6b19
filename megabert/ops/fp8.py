"""Products in 8 bits with a scale per row: a dense layer's output and its input's gradient (``precision: fp8``).

Both factors are rounded to e4m3: 4 significant bits, from 2^-9 to 448. All else is as in bf16, the weight's gradient
included, as in torchao's recipe ``rowwise_with_gw_hp``. A row of the left factor is a token, of the right factor an
output. A row's scale is the smallest power of two that brings its largest value into range:

- Neither packing nor ranks matter, nothing saturates, and there is no history to keep in a checkpoint.
- Scaling rounds nothing. A value keeps the same 4 bits whatever its row, down to 2^-13 of the row's largest one. So the
  weight is the same in both products, although its rows are outputs in one and inputs in the other.

NaN stays NaN and infinity divided by its own scale becomes NaN, so the products of such a row are NaN and the step is
skipped.

On a CPU the rounded values are multiplied in float32. On a GPU a kernel rounds a row in one pass
(``triton_support.row_casts``), and ``torch._scaled_mm`` multiplies and adds up in float32: the same numbers but for the
order of sums. No GPU has run it yet.
"""

# T tokens, I inputs, O outputs, K the inner dimension: the product is left_TK right_OK^T; R rows of either

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.backend import has_triton

CAPABILITY = (8, 9)
"""Compute capability from which on a GPU multiplies in 8 bits."""
MULTIPLE = 16
"""``_scaled_mm`` takes sizes that are multiples of this; tokens are padded to one, widths have to be one."""
FORWARD = GRADIENT = torch.float8_e4m3fn
"""Types of activations and weights, and of gradients. With a scale per row, e5m2's larger range is of no use."""
MANTISSA = 2**23 - 1
"""The bits of a float32 below its exponent."""


def scales_of(rows_RK: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scale of each row, a power of two, float32 of shape (R, 1); values are divided by it.

    Args:
        rows_RK: Rows, in any floating-point type.
        dtype: An 8-bit type.
    """
    largest_R1 = rows_RK.abs().amax(1, keepdim=True).float()
    quotient_R1 = (largest_R1 / torch.finfo(dtype).max).clamp(min=torch.finfo(torch.float32).tiny)
    # The next power of two is a float32 whose mantissa is 0. All operations are exact, so every device agrees.
    return ((quotient_R1.view(torch.int32) + MANTISSA) & ~MANTISSA).view(torch.float32)


def cast_rows(rows_RK: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows in an 8-bit type, contiguous, and their scales, float32 of shape (R, 1)."""
    scales_R1 = scales_of(rows_RK, dtype)
    return (rows_RK / scales_R1.to(rows_RK.dtype)).to(dtype).contiguous(), scales_R1


def row_product(
    left_TK: Tensor, right_OK: Tensor, bias_O: Tensor | None = None, *, dtype: torch.dtype = FORWARD
) -> Tensor:
    """Return left right^T + bias, of shape (T, O) in the type of the left factor; both are rounded to 8 bits.

    Args:
        left_TK: Activations, or gradients.
        right_OK: Weight; for the gradient of the input its transpose.
        bias_O: Bias; None adds none.
        dtype: 8-bit type of the left factor.
    """
    multiply = _on_cuda if left_TK.device.type == "cuda" else _on_cpu
    return multiply(left_TK, right_OK, bias_O, dtype)


def _on_cpu(left_TK: Tensor, right_OK: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
    left8_TK, scales_T1 = cast_rows(left_TK, dtype)
    right8_OK, scales_O1 = cast_rows(right_OK, FORWARD)
    bias_O = None if bias_O is None else bias_O.float()
    product_TO = functional.linear(left8_TK.float() * scales_T1, right8_OK.float() * scales_O1, bias_O)
    return product_TO.to(left_TK.dtype)


def _on_cuda(left_TK: Tensor, right_OK: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
    # The left factor is row-major, the right one column-major; both scales are contiguous, (T, 1) and (1, O).
    left8_TK, scales_T1 = _cast_to_multiple(left_TK, dtype)
    right8_OK, scales_O1 = _cast_to_multiple(right_OK, FORWARD)
    product_TO = torch._scaled_mm(
        left8_TK,
        right8_OK.t(),
        scale_a=scales_T1,
        scale_b=scales_O1.t(),
        bias=bias_O,
        out_dtype=left_TK.dtype,
        use_fast_accum=False,  # on Hopper fast sums keep about 14 bits
    )
    return product_TO[: len(left_TK)]


def _cast_to_multiple(rows_RK: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return `cast_rows` with zeros appended up to a multiple of rows."""
    if has_triton():
        from megabert.ops.triton_support.row_casts import cast_rows_triton

        return cast_rows_triton(rows_RK, dtype, MULTIPLE)
    return cast_rows(functional.pad(rows_RK, (0, 0, 0, -len(rows_RK) % MULTIPLE)), dtype)


def row_product_reference(left_TK: Tensor, right_OK: Tensor, *, dtype: torch.dtype = FORWARD) -> Tensor:
    """Return left right^T by the definition, in float64: each value to the nearest that the 8-bit type has."""
    return _rounded(left_TK.double(), dtype) @ _rounded(right_OK.double(), FORWARD).t()


def _rounded(rows_RK: Tensor, dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
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
