"""Row keys and plain dropout as Triton kernels: one launch each, where torch takes eight over int32 intermediates."""

# T packed tokens, N heads, D hidden

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops.dropout import Dropout
from megabert.ops.triton_support.dropout_hash import is_kept, lowbias32
from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.tile_sizes import bias_gelu_tiles, power_of_two


@triton.jit
def dropout_row_keys(seeds, constants, keys, tokens, heads, ROWS: tl.constexpr, HEADS: tl.constexpr):
    """Write lowbias32(seed ^ constant), int32 of shape (T, N)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.arange(0, HEADS)
    seed = tl.load(seeds + row, mask=row < tokens, other=0)
    constant = tl.load(constants + head, mask=head < heads, other=0)
    key = lowbias32((seed[:, None] ^ constant[None, :]).to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True)
    place = row.to(tl.int64)[:, None] * heads + head[None, :]
    tl.store(keys + place, key, mask=(row < tokens)[:, None] & (head < heads)[None, :])


@triton.jit
def dropout_tile(x, row_keys, y, tokens, width, threshold, scale, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Drop and scale one tile; forward and backward are the same."""
    tiles = tl.cdiv(width, COLUMNS)
    row = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < tokens)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    key = tl.load(row_keys + row, mask=row < tokens, other=0)
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * scale
    kept = tl.where(is_kept(key[:, None], column[None, :], threshold), value, 0.0)
    tl.store(y + place, kept.to(y.dtype.element_ty), mask=inside)


def row_keys_triton(seeds_T: Tensor, constants_N: Tensor) -> Tensor:
    """Return ``dropout.row_keys`` of every token and head, int32 of shape (T, N)."""
    tokens, heads = seeds_T.numel(), constants_N.numel()
    keys_TN = torch.empty(tokens, heads, dtype=torch.int32, device=seeds_T.device)
    columns = power_of_two(heads)
    rows = max(1, 1024 // columns)
    if tokens:
        dropout_row_keys[(triton.cdiv(tokens, rows),)](
            seeds_T, constants_N, keys_TN, tokens, heads, ROWS=rows, HEADS=columns, num_warps=4
        )
    return keys_TN


def dropped_triton(x_TD: Tensor, dropout: Dropout) -> Tensor:
    """Return ``x_TD`` with elements dropped and the others scaled; its own gradient's rule, too."""
    require("dropout", x_TD)
    tokens, width = x_TD.shape
    tiles = bias_gelu_tiles(width)
    y_TD = torch.empty_like(x_TD)
    if tokens:
        dropout_tile[(triton.cdiv(width, tiles.columns) * triton.cdiv(tokens, tiles.rows),)](
            x_TD,
            dropout.row_keys,
            y_TD,
            tokens,
            width,
            dropout.threshold,
            dropout.scale,
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            num_warps=tiles.warps,
        )
    return y_TD
