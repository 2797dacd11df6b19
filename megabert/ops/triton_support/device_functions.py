"""Triton functions that kernels call: the hash of ``megabert.ops.dropout``, and exp2 and 1 / x in one instruction each.

The hash gives the same masks, bit for bit. To exp2 and 1 / x subnormal numbers count as zero: to treat them exactly
would take two more instructions around each. Triton's interpreter does not have these two and takes the exact ones.
"""

import os

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from megabert.foundation.randomness import lowbias32 as constants
from megabert.ops import dropout as attention

IS_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
HAS_PTX = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1" and torch.version.hip is None)
"""Whether NVIDIA's assembly may be written into a kernel; AMD's compiler ends the process over it."""
GOLDEN = tl.constexpr(constants.GOLDEN)
FIRST, SECOND = tl.constexpr(constants.FIRST), tl.constexpr(constants.SECOND)
KEY_STEP = tl.constexpr(attention.KEY_STEP % 2**32)
FACTOR_0, FACTOR_1, FACTOR_2, FACTOR_3 = (tl.constexpr(factor) for factor in attention.FACTORS)


@triton.jit
def lowbias32(x):
    """Hash uint32, as ``megabert.foundation.randomness.lowbias32``."""
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
    # The last xor-shift changes only bits below the threshold's: it is skipped.
    return x.to(tl.int32, bitcast=True) >= threshold


@triton.jit
def drop_pairs(p, keys, first_row, rows, first_column, columns, threshold):
    """Return attention probabilities, the dropped ones set to 0: ``megabert.ops.dropout``.

    Where four elements of one hash belong to one thread the compiler sees that: bit 3 of their row and column are the
    same in all threads, so the factors are constants, and the rest is computed once.

    Args:
        p: Probabilities, float32.
        keys: Key of the sequence and head, uint32, and lowbias32(key + GOLDEN).
        first_row: Query at which the tile begins, a multiple of 16.
        rows: Queries of the tile, counted from there, a range with a dimension more.
        first_column: Key at which the tile begins, a multiple of 16.
        columns: Keys of the tile, counted from there, a range that broadcasts against ``rows``.
        threshold: Smallest hash that survives, as a signed number: ``AttentionDropout.threshold``.
    """
    row = (first_row >> 1) + ((rows >> 4 << 3) | (rows & 7))
    column = (first_column >> 1) + ((columns >> 4 << 3) | (columns & 7))
    x = keys[0] + row.to(tl.uint32, bitcast=True) * GOLDEN + column.to(tl.uint32, bitcast=True) * KEY_STEP
    x ^= x >> 16
    x = x * FIRST + keys[1]
    x ^= x >> 15
    is_odd_row, is_odd_column = (rows & 8) != 0, (columns & 8) != 0
    factor = tl.where(
        is_odd_row,
        tl.where(is_odd_column, FACTOR_3, FACTOR_2),
        tl.where(is_odd_column, FACTOR_1, FACTOR_0),
    )
    word = (x * factor.to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True)
    if not HAS_PTX:
        return tl.where(word >= threshold, p, 0.0)
    # As tl.where the compiler would first round p to 16 bits, then select and shuffle halves: three instructions.
    asm: tl.constexpr = "{ .reg .pred kept; setp.ge.s32 kept, $2, $3; selp.f32 $0, $1, 0f00000000, kept; }"
    return tl.inline_asm_elementwise(asm, "=f,f,r,r", [p, word, threshold], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def row_tile(
    tokens,  # rows of a matrix
    width,  # its columns
    ROWS: tl.constexpr,  # rows of a tile
    COLUMNS: tl.constexpr,  # columns of a tile
):
    """Return rows and columns of this program's tile, which of its elements exist, and their offsets as (T, width).

    Tiles are numbered row by row.
    """
    tiles = tl.cdiv(width, COLUMNS)
    row = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < tokens)[:, None] & (cols < width)[None, :]
    return row, cols, mask, row.to(tl.int64)[:, None] * width + cols[None, :]


@triton.jit
def prefetch(pointers):
    """Ask the L2 cache for what some pointers point at, and do not wait for it."""
    if HAS_PTX:
        asm: tl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
        tl.inline_asm_elementwise(asm, "=r,l", [pointers.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1)


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
