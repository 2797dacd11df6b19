"""Row keys and plain dropout as Triton kernels: one launch each, where torch takes eight over int32 intermediates."""

# T packed tokens, D hidden

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops.dropout import Dropout
from megabert.ops.triton_support.device_functions import is_kept, lowbias32, row_tile
from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.tile_sizes import bias_gelu_tiles


@triton.jit(do_not_specialize=["constant", "tokens"])  # every site has its own constant: one compilation for all
def dropout_row_keys(
    seeds_ptr,  # seed of each token, int32, (tokens,)
    constant,  # of the site, int32
    keys_ptr,  # result, int32, (tokens,)
    tokens,  # T
    ROWS: tl.constexpr,  # tokens of a program
):
    """Write lowbias32(seed ^ constant) of ROWS tokens."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    seed = tl.load(seeds_ptr + row, mask=row < tokens, other=0)
    key = lowbias32((seed ^ constant).to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True)
    tl.store(keys_ptr + row, key, mask=row < tokens)


@triton.jit(do_not_specialize=["tokens"])
def dropout_tile(
    x_ptr,  # hidden states or their gradient, (tokens, width)
    row_keys_ptr,  # keys of dropout, int32, (tokens,)
    y_ptr,  # result, (tokens, width)
    tokens,  # rows
    width,  # columns of a row
    threshold,  # smallest hash that survives dropout, int32
    scale,  # factor of the survivors
    ROWS: tl.constexpr,  # rows of a tile
    COLUMNS: tl.constexpr,  # columns of a tile
):
    """Drop and scale one tile; forward and backward are the same. Tiles are numbered row by row."""
    row, cols, mask, offsets = row_tile(tokens, width, ROWS, COLUMNS)
    key = tl.load(row_keys_ptr + row, mask=row < tokens, other=0)
    scaled = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32) * scale
    out = tl.where(is_kept(key[:, None], cols[None, :], threshold), scaled, 0.0)
    tl.store(y_ptr + offsets, out.to(y_ptr.dtype.element_ty), mask=mask)


def row_keys_triton(seeds_T: Tensor, constant: int) -> Tensor:
    """Return the dropout key of every token, as ``dropout.row_keys_torch``: int32 of shape (T,)."""
    tokens, rows = seeds_T.numel(), 1024
    keys_T = torch.empty_like(seeds_T)
    if tokens:
        dropout_row_keys[(triton.cdiv(tokens, rows),)](seeds_T, constant, keys_T, tokens, ROWS=rows, num_warps=4)
    return keys_T


def dropped_triton(x_TD: Tensor, dropout: Dropout) -> Tensor:
    """Return ``x_TD`` with elements dropped and the others scaled, or the same for a gradient."""
    require("dropout", x_TD)
    y_TD = torch.empty_like(x_TD)
    tensors, numbers = (x_TD, dropout.row_keys, y_TD), (dropout.threshold, dropout.scale)
    bias_gelu_tiles(x_TD.shape[1]).launch_over(dropout_tile, tensors, *numbers)
    return y_TD
