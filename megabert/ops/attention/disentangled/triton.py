"""``disentangled_attention`` on Triton kernels: launches, matrix products with positions, tensors kept between passes.

The products of contents with positions are not kept: the backward pass makes them again, which takes the
same number of operations as the scores of contents. Their scratch and the gradients of scores belong to some heads at a
time.
"""

# T packed tokens, B sequences, N heads, H head width, D = N * H, C = 3 * D, E distances,
# P positions, rounded up to a multiple of 16, L keys of the longest sequence, rounded up to whole tiles,
# R rows of ``lse`` and ``delta``: T and room after each sequence

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from megabert.foundation.errors import KernelError
from megabert.ops.attention.dense.cpu import product
from megabert.ops.attention.dense.triton import LOG2_E, launch_options, seeds_and_constants, write_delta
from megabert.ops.attention.disentangled.backward_kernels import (
    disentangled_attention_backward_keys,
    disentangled_attention_backward_queries,
    disentangled_attention_sum_distances,
)
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions, score_divisor
from megabert.ops.attention.disentangled.kernels import disentangled_attention_forward
from megabert.ops.dropout import AttentionDropout, Heads, threshold_and_scale
from megabert.ops.triton_support.input_checks import require_heads
from megabert.ops.triton_support.tile_sizes import DISTANCES, ThreeTiles, capability_of, disentangled_tiles

PAIRS = 1 << 31
"""The kernels number the pairs of a sequence's tokens with keys, and with positions, by 32 bits."""
SCRATCH = 1 << 28
"""Elements of one scratch tensor, 512 MiB in 16 bits: all heads at once up to 43,690 tokens of DeBERTa-base at 512."""


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """Inputs and shapes that the launches of both passes share."""

    cu_seqlens: Tensor
    max_seqlen: int
    tokens: int
    num_heads: int
    head_width: int
    position_E: Tensor
    dropout: AttentionDropout | None
    divisor: float
    """Divisor of the scores: sqrt(H * kinds)."""
    positions: int
    """P."""
    tiles: ThreeTiles

    @property
    def sequences(self) -> int:
        """B."""
        return self.cu_seqlens.numel() - 1

    @property
    def middle(self) -> int:
        """Place of distance 0 in the table of positions."""
        return self.position_E.numel() // 2

    @property
    def longest(self) -> int:
        """L."""
        tile = max(self.tiles.keys.rows, self.tiles.keys.columns)
        return max(1, triton.cdiv(self.max_seqlen, tile)) * tile

    def blocks(self, size: int) -> int:
        """Return the number of blocks of ``size`` tokens in the longest sequence."""
        return max(1, triton.cdiv(self.max_seqlen, size))

    def groups_of_heads(self, columns: int) -> Iterator[slice]:
        """Yield all heads in groups, whose scratch of ``columns`` for each token is at most SCRATCH."""
        step = max(1, SCRATCH // max(1, self.tokens * columns))
        for first in range(0, self.num_heads, step):
            yield slice(first, min(first + step, self.num_heads))

    def by_head(self, x_TC: Tensor) -> Tensor:
        """Return a view of queries, keys and values, or of positions as one of them, by head."""
        return x_TC.unflatten(1, (-1, self.num_heads, self.head_width)).permute(1, 2, 0, 3)

    def products(self, x_NTH: Tensor, position_PD: Tensor | None, heads: slice) -> Tensor | None:
        """Return the scores of some heads' contents with all positions, of shape (N, T, P), scaled as for exp2."""
        if position_PD is None:
            return None
        return product(x_NTH[heads], self.by_head(position_PD)[0, heads].mT, scale=LOG2_E / self.divisor)


def disentangled_attention_triton(
    qkv_TC: Tensor, positions: RelativePositions, sequences: DisentangledSequences, heads: Heads
) -> Tensor:
    """Run ``api.disentangled_attention`` on a CUDA device; products of 16-bit numbers, sums and softmax in float32."""
    require_heads(qkv_TC, heads.num_heads)
    # Positions in the dtype of the contents, and rows of zeros up to a multiple of 16, for aligned matrix products.
    key_PD, query_PD = (
        None if one is None else functional.pad(one.to(qkv_TC.dtype), (0, 0, 0, -len(one) % 16))
        for one in (positions.key_PD, positions.query_PD)
    )
    head_width = qkv_TC.shape[1] // (3 * heads.num_heads)
    launch = _Launch(
        cu_seqlens=sequences.cu_seqlens,
        max_seqlen=sequences.max_seqlen,
        tokens=len(qkv_TC),
        num_heads=heads.num_heads,
        head_width=head_width,
        position_E=positions.position_E.to(torch.int32),
        dropout=heads.dropout,
        divisor=score_divisor(head_width, positions.kinds),
        positions=next((len(one) for one in (key_PD, query_PD) if one is not None), 16),
        tiles=disentangled_tiles(capability_of(qkv_TC.device), head_width=head_width, itemsize=qkv_TC.itemsize),
    )
    columns = max(launch.longest, launch.positions)
    if launch.max_seqlen * columns > PAIRS:
        raise KernelError(
            f"DeBERTa's kernels cannot number {launch.max_seqlen:,} tokens by {columns:,} keys or positions in 32 "
            "bits. Shorten the sequences, or set ops.attention to torch."
        )
    return _DisentangledAttention.apply(qkv_TC, key_PD, query_PD, launch)


class _DisentangledAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv_TC: Tensor, key_PD: Tensor | None, query_PD: Tensor | None, launch: _Launch) -> Tensor:
        qkv_TC = qkv_TC.contiguous()
        tile = launch.tiles.forward
        out_TD = qkv_TC.new_empty(launch.tokens, launch.num_heads * launch.head_width)
        queries = launch.tokens // 16 * 16 + launch.sequences * (tile.rows + 16)  # as `first_query` lays them out
        lse_NR = out_TD.new_empty(launch.num_heads, queries, dtype=torch.float32)
        q_NTH, k_NTH, _ = launch.by_head(qkv_TC)
        blocks = launch.blocks(tile.rows)
        for heads in launch.groups_of_heads(launch.positions):
            c2p_NTP = launch.products(q_NTH, key_PD, heads)
            p2c_NTP = launch.products(k_NTH, query_PD, heads)
            disentangled_attention_forward[((launch.sequences + 1) * blocks, heads.stop - heads.start)](
                *(qkv_TC, launch.position_E, c2p_NTP, p2c_NTP, launch.cu_seqlens),
                *(*seeds_and_constants(launch.dropout), out_TD, lse_NR),
                *(launch.tokens, queries, launch.sequences, launch.num_heads, heads.start, blocks),
                *(launch.middle, launch.positions, LOG2_E / launch.divisor, *threshold_and_scale(launch.dropout)),
                **launch_options(tile, launch.head_width),
            )
        ctx.save_for_backward(qkv_TC, key_PD, query_PD, out_TD, lse_NR)
        ctx.launch = launch
        return out_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        qkv_TC, key_PD, query_PD, out_TD, lse_NR = ctx.saved_tensors
        launch: _Launch = ctx.launch
        grad_TD, delta_NR, dqkv_TC = grad_TD.contiguous(), torch.empty_like(lse_NR), torch.empty_like(qkv_TC)
        _, scale = threshold_and_scale(launch.dropout)
        write_delta(
            *(delta_NR, out_TD, grad_TD, launch.cu_seqlens),
            max_seqlen=launch.max_seqlen,
            rows=launch.tiles.forward.rows,
            scale=scale,
        )
        # Place of each position's first distance in the table, and past the last one's end.
        position_P = torch.arange(launch.positions + 1, dtype=torch.int32, device=qkv_TC.device)
        first_P = torch.searchsorted(launch.position_E, position_P, out_int32=True)
        dkey_PD, dquery_PD = (None if one is None else torch.empty_like(one) for one in (key_PD, query_PD))
        (q_NTH, k_NTH, _), (dq_NTH, dk_NTH, _) = launch.by_head(qkv_TC), launch.by_head(dqkv_TC)
        for heads in launch.groups_of_heads(max(launch.positions, launch.longest)):
            c2p_NTP = launch.products(q_NTH, key_PD, heads)
            p2c_NTP = launch.products(k_NTH, query_PD, heads)
            kept, products = (qkv_TC, grad_TD, lse_NR, delta_NR), (c2p_NTP, p2c_NTP)
            ds_NTL, ds_by_key_NTL = _differentiate_contents(kept, products, dqkv_TC, launch, heads)
            _differentiate_positions(
                (ds_NTL, first_P, c2p_NTP), (q_NTH, key_PD), (dq_NTH, dkey_PD), launch, heads, is_by_key=False
            )
            _differentiate_positions(
                (ds_by_key_NTL, first_P, p2c_NTP), (k_NTH, query_PD), (dk_NTH, dquery_PD), launch, heads, is_by_key=True
            )
        return dqkv_TC, dkey_PD, dquery_PD, None


def _differentiate_contents(
    kept: tuple[Tensor, ...],
    products: tuple[Tensor | None, Tensor | None],
    dqkv_TC: Tensor,
    launch: _Launch,
    heads: slice,
) -> tuple[Tensor, Tensor | None]:
    """Write the content-to-content gradients of some heads, and return the gradients of their scores.

    Args:
        kept: Queries, keys and values, the contexts' gradient, lse and delta.
        products: Queries times positions, and keys times positions.
        dqkv_TC: Where the gradients are written.
        launch: Shapes and dropout.
        heads: Which heads.

    Returns:
        dS by query and key, and by key and query if keys meet positions, both of shape (N, T, L).
    """
    (qkv_TC, grad_TD, lse_NR, delta_NR), (c2p_NTP, p2c_NTP) = kept, products
    keys, queries, count = launch.tiles.keys, launch.tiles.queries, heads.stop - heads.start
    threshold, scale = threshold_and_scale(launch.dropout)
    ds_NTL = dqkv_TC.new_empty(count, launch.tokens, launch.longest)
    ds_by_key_NTL = None if p2c_NTP is None else torch.empty_like(ds_NTL)
    blocks = launch.blocks(keys.columns)
    disentangled_attention_backward_keys[((launch.sequences + 1) * blocks, count)](
        *(qkv_TC, launch.position_E, c2p_NTP, p2c_NTP, grad_TD, launch.cu_seqlens),
        *(*seeds_and_constants(launch.dropout), lse_NR, delta_NR, dqkv_TC, ds_NTL, ds_by_key_NTL),
        *(launch.tokens, delta_NR.shape[1], launch.sequences, launch.num_heads, heads.start, blocks),
        *(launch.middle, launch.positions, launch.longest),
        *(LOG2_E / launch.divisor, scale / launch.divisor, threshold, scale),
        PADDING=launch.tiles.forward.rows,
        **launch_options(keys, launch.head_width),
    )
    blocks = launch.blocks(queries.rows)
    disentangled_attention_backward_queries[((launch.sequences + 1) * blocks, count)](
        *(qkv_TC, ds_NTL, launch.cu_seqlens, dqkv_TC),
        *(launch.tokens, launch.sequences, launch.num_heads, heads.start, blocks, launch.longest),
        scale / launch.divisor,
        **launch_options(queries, launch.head_width),
    )
    return ds_NTL, ds_by_key_NTL


def _differentiate_positions(
    scores: tuple[Tensor | None, Tensor, Tensor | None],
    inputs: tuple[Tensor, Tensor | None],
    gradients: tuple[Tensor, Tensor | None],
    launch: _Launch,
    heads: slice,
    *,
    is_by_key: bool,
) -> None:
    """Add the positions' share to the gradient of some heads' contents, and write the positions' own gradient.

    Args:
        scores: dS, first distance of each position, and the products, in whose memory their gradient is written.
        inputs: Contents of all heads, and the positions that they were multiplied with.
        gradients: The gradients of both.
        launch: Shapes and dropout.
        heads: Which heads.
        is_by_key: Whether these contents are keys, and dS is by key and query.
    """
    (ds_NTL, first_P, sums_NTP), (x_NTH, position_PD), (dx_NTH, dposition_PD) = scores, inputs, gradients
    if sums_NTP is None or position_PD is None or dposition_PD is None:
        return
    blocks, scale = launch.blocks(DISTANCES.rows), threshold_and_scale(launch.dropout)[1] / launch.divisor
    columns = triton.cdiv(launch.positions, DISTANCES.columns)
    disentangled_attention_sum_distances[((launch.sequences + 1) * blocks, len(sums_NTP), columns)](
        *(ds_NTL, first_P, launch.cu_seqlens, sums_NTP),
        *(launch.tokens, launch.sequences, blocks, launch.middle, launch.positions, launch.longest),
        IS_BY_KEY=is_by_key,
        **DISTANCES.options,
    )
    dx_NTH[heads].baddbmm_(sums_NTP, launch.by_head(position_PD)[0, heads], alpha=scale)
    launch.by_head(dposition_PD)[0, heads] = product(sums_NTP.mT, x_NTH[heads], scale=scale)
