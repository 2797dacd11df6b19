"""The backend of ``attention`` in plain torch, fast on a CPU.

Sequences of one length share batched products, and nothing is padded. Rows of one head (H numbers) are
gathered from packed QKV into slots, so that sequences of equal length are next to each other and a block of them is
one batched matrix product, small enough for the cache. ``plan_attention`` works the layout out once per
micro-batch, and it serves every layer.

The gradient is written out because torch's own would keep two more copies of the probabilities and pad slices with
zeros. Derivation: with P = softmax(S), A = keep * scale * P, O = A V,
dV = A^T dO, dP = keep * scale * (dO V^T), dS = P * (dP - rowsum(P * dP)).
"""

# B sequences, S tokens, T packed tokens, N heads, H head width, D = N * H, C = 3 * D, R slots (B * N * S),
# Z sequences * heads

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.dropout import Heads, probability_bits, probability_mask, select_
from megabert.ops.sequences import Groups, groups_of_equal_length, padded_groups

BLOCK = 1 << 17
"""Probabilities in a block: 512 KiB in float32, half of a usual core's cache."""


@dataclass(frozen=True)
class AttentionBlocks:
    """How the tokens of one micro-batch are laid out in slots; the same for every layer."""

    shapes: tuple[tuple[int, int, int], ...]
    """(first slot, sequences * heads, length) of each block."""
    slots: int
    """R, the number of slots of all blocks."""
    gather_qkv: Tensor
    """Int64 of shape (3 * R,): for each slot of Q, K and V its row in QKV seen as (T * 3 * N, H)."""
    scatter_qkv: Tensor
    """Int64 of shape (T * 3 * N,): the inverse; tokens of no sequence point to row 3 * R."""
    gather_out: Tensor
    """Int64 of shape (R,): for each slot its row in the output seen as (T * N, H)."""
    scatter_out: Tensor
    """Int64 of shape (T * N,): the inverse; tokens of no sequence point to row R."""
    order_Z: Tensor
    """Int64: for each sequence * head, in the order of slots, its number in dropout's keys seen as (B * N,)."""


@dataclass(frozen=True)
class DenseSequences:
    """The sequences of a micro-batch as ``attention`` reads them; the same for every layer."""

    cu_seqlens: Tensor
    """Int32 of shape (B + 1,), where each sequence starts; the last number is the end of the last one. Sequences of
    length 0 are allowed. Tokens past the last boundary belong to no sequence and get zeros."""
    max_seqlen: int
    """At least the longest length."""
    blocks: AttentionBlocks | None = None
    """Layout of the CPU backend, which ``plan_attention`` works out once; None works it out in each call."""


def attention_torch(qkv_TC: Tensor, sequences: DenseSequences, heads: Heads, bias_C: Tensor | None = None) -> Tensor:
    """Run ``attention``: in blocks on a CPU, as padded groups elsewhere; 16 bits on a CPU work in float32."""
    if bias_C is not None:
        qkv_TC = _SumForBias.apply(qkv_TC, bias_C)
    if qkv_TC.device.type != "cpu":
        return padded_attention(qkv_TC, sequences, heads)
    blocks = sequences.blocks or plan_blocks(sequences.cu_seqlens, tokens=len(qkv_TC), num_heads=heads.num_heads)
    compute = torch.promote_types(qkv_TC.dtype, torch.float32)
    return _Attention.apply(qkv_TC.to(compute), heads, blocks).to(qkv_TC.dtype)


def plan_blocks(cu_seqlens: Tensor, *, tokens: int, num_heads: int) -> AttentionBlocks:
    """Sort sequences into blocks of equal length.

    Args:
        cu_seqlens: Int32 of shape (B + 1,) on the CPU.
        tokens: T, padding included.
        num_heads: N.
    """
    groups = groups_of_equal_length(cu_seqlens, tokens=tokens, num_heads=num_heads, probabilities=BLOCK)
    head_N = torch.arange(num_heads)
    # Slots are numbered block by block, sequence by sequence, head by head.
    shapes, rows, slots = [], [torch.empty(0, dtype=torch.int64)], 0
    for (count, length), token_R in zip(groups.shapes, groups.token_R.split(groups.sizes), strict=True):
        shapes.append((slots, count * num_heads, length))
        rows.append((token_R.view(count, 1, length) * num_heads + head_N[:, None]).flatten())
        slots += len(rows[-1])
    # From slots to tokens; the inverse sends tokens of no sequence to the row after the last slot.
    gather_out = torch.cat(rows)
    scatter_out = torch.full((tokens * num_heads,), slots).index_put((gather_out,), torch.arange(slots))
    # QKV holds three rows per head, the output one.
    part_31 = torch.arange(3)[:, None]
    gather_qkv = ((gather_out // num_heads * 3 + part_31) * num_heads + gather_out % num_heads).flatten()
    scatter_qkv = torch.full((tokens * 3 * num_heads,), 3 * slots).index_put((gather_qkv,), torch.arange(3 * slots))
    order_Z = (groups.order_B[:, None] * num_heads + head_N).flatten()
    return AttentionBlocks(tuple(shapes), slots, gather_qkv, scatter_qkv, gather_out, scatter_out, order_Z)


class _SumForBias(torch.autograd.Function):
    """Returns its input, whose gradient it sums over tokens: that is the gradient of a bias in it."""

    @staticmethod
    def forward(ctx: Any, qkv_TC: Tensor, bias_C: Tensor) -> Tensor:
        return qkv_TC.view_as(qkv_TC)

    @staticmethod
    def backward(ctx: Any, grad_TC: Tensor) -> tuple[Tensor, Tensor]:
        return grad_TC, grad_TC.sum(0)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv_TC: Tensor, heads: Heads, layout: AttentionBlocks) -> Tensor:
        num_heads, dropout = heads
        tokens, width = qkv_TC.shape[0], qkv_TC.shape[1] // 3
        head_width = width // num_heads
        # From packed tokens to slots. Tokens of no sequence read the row after the last slot.
        qkv_3RH = _rows(qkv_TC, head_width, layout.gather_qkv).view(3, layout.slots, head_width)
        keys_Z = None if dropout is None else dropout.keys_BN().view(-1).index_select(0, layout.order_Z)
        out_RH = qkv_TC.new_empty(layout.slots + 1, head_width)
        out_RH[-1] = 0
        # Block by block: scores, softmax in place, context. The probabilities are kept, undropped, for backward.
        probabilities = []
        for numbers, (q_ZSH, k_ZSH, v_ZSH, o_ZSH) in _blocks(layout, *qkv_3RH, out_RH):
            p_ZSS = product(q_ZSH, k_ZSH.mT, scale=1 / math.sqrt(head_width))
            torch.softmax(p_ZSS, -1, out=p_ZSS)
            probabilities.append(p_ZSS)
            if keys_Z is None or dropout is None:
                torch.bmm(p_ZSS, v_ZSH, out=o_ZSH)
            else:
                dropped_ZSS = select_(p_ZSS.clone(), probability_bits(dropout, keys_Z[numbers], p_ZSS.shape[-1]))
                product(dropped_ZSS, v_ZSH, scale=dropout.scale, out=o_ZSH)
        ctx.save_for_backward(qkv_3RH, keys_Z, *probabilities)
        ctx.constants = (heads, layout)
        return out_RH.index_select(0, layout.scatter_out).view(tokens, width)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, None, None]:
        qkv_3RH, keys_Z, *probabilities = ctx.saved_tensors
        (num_heads, dropout), layout = ctx.constants
        tokens, width = grad_TD.shape
        head_width = width // num_heads
        # dP has dropout's factor and dS the scores': both go into the products that read dS.
        scale = (1.0 if dropout is None else dropout.scale) / math.sqrt(head_width)
        # To slots as in forward; the gradients of Q, K and V are written where their blocks are.
        grad_RH = _rows(grad_TD, head_width, layout.gather_out)
        grads_RH = grad_TD.new_empty(3 * layout.slots + 1, head_width)
        grads_RH[-1] = 0
        grads_3RH = grads_RH[:-1].view(3, layout.slots, head_width)
        blocks = _blocks(layout, *qkv_3RH, grad_RH, *grads_3RH)
        for p_ZSS, (numbers, (q_ZSH, k_ZSH, v_ZSH, do_ZSH, dq_ZSH, dk_ZSH, dv_ZSH)) in zip(
            probabilities, blocks, strict=True
        ):
            # dP, and dV from the probabilities as forward dropped them: their mask is computed again.
            dp_ZSS = torch.bmm(do_ZSH, v_ZSH.mT)
            if dropout is None:
                torch.bmm(p_ZSS.mT, do_ZSH, out=dv_ZSH)
            else:
                bits_ZSS = probability_bits(dropout, keys_Z[numbers], p_ZSS.shape[-1])
                dropped_ZSS = select_(p_ZSS.clone(), bits_ZSS)
                product(dropped_ZSS.mT, do_ZSH, scale=dropout.scale, out=dv_ZSH)
                select_(dp_ZSS, bits_ZSS)
            # Through the softmax, dS = P * (dP - rowsum(P * dP)), and on to queries and keys.
            ds_ZSS = torch.ops.aten._softmax_backward_data(dp_ZSS, p_ZSS, -1, p_ZSS.dtype)
            product(ds_ZSS, k_ZSH, scale=scale, out=dq_ZSH)
            product(ds_ZSS.mT, q_ZSH, scale=scale, out=dk_ZSH)
        return grads_RH.index_select(0, layout.scatter_qkv).view(tokens, 3 * width), None, None


def _rows(x_TC: Tensor, width: int, index: Tensor) -> Tensor:
    """Return rows of ``width`` numbers by index; on a CPU six times as fast as ``x[index]``."""
    return x_TC.contiguous().view(-1, width).index_select(0, index)


def _blocks(layout: AttentionBlocks, *tensors_RH: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
    """Yield which sequences * heads are in each block, and its part of every tensor, as (Z, length, H)."""
    done = 0
    for first, batch, length in layout.shapes:
        rows = slice(first, first + batch * length)
        yield slice(done, done + batch), [tensor[rows].view(batch, length, -1) for tensor in tensors_RH]
        done += batch


def product(a: Tensor, b: Tensor, *, scale: float, out: Tensor | None = None) -> Tensor:
    """Return ``scale`` * a b, the factor inside the matrix product."""
    if out is None:
        out = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    return torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)


def padded_attention(qkv_TC: Tensor, sequences: DenseSequences, heads: Heads, *, reach: int | None = None) -> Tensor:
    """Attend over groups of sequences padded to the longest length; a GPU need not be waited for.

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D).
        sequences: The sequences; their blocks are not read.
        heads: Their number and dropout.
        reach: How many tokens to each side a token sees; None sees all of its sequence.

    Returns:
        Shape (T, D); zero at tokens of no sequence.
    """
    max_seqlen = sequences.max_seqlen

    def scores(q_NGSH: Tensor, k_NGSH: Tensor) -> Tensor:
        scores_NGSS = q_NGSH @ k_NGSH.mT / math.sqrt(q_NGSH.shape[-1])
        scores_NGSS = scores_NGSS.to(torch.promote_types(qkv_TC.dtype, torch.float32))
        if reach is None:
            return scores_NGSS
        offset_S = torch.arange(max_seqlen, device=qkv_TC.device)
        return scores_NGSS.masked_fill((offset_S[:, None] - offset_S).abs() > reach, -torch.inf)

    sizes = {"tokens": len(qkv_TC), "max_seqlen": max_seqlen, "num_heads": heads.num_heads}
    return grouped_attention(qkv_TC, padded_groups(sequences.cu_seqlens, **sizes), scores, heads)


def grouped_attention(
    qkv_TC: Tensor, groups: Groups, scores: Callable[[Tensor, Tensor], Tensor], heads: Heads
) -> Tensor:
    """Mix tokens within each sequence by softmax(scores) V, group by group.

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D), each (N, H).
        groups: Layout of these sequences.
        scores: Returns scores, float32 or better of shape (N, G, S, S), for queries and keys of shape (N, G, S, H).
        heads: Their number and dropout.

    Returns:
        Shape (T, D) in the dtype of ``qkv_TC``, zero at tokens of no sequence. On a CPU 16 bits work in float32.
    """
    num_heads, dropout = heads
    compute = torch.promote_types(qkv_TC.dtype, torch.float32) if qkv_TC.device.type == "cpu" else qkv_TC.dtype
    width = qkv_TC.shape[1] // 3
    # From tokens to slots. One gather and one split: the gradient of each is one pass, whatever the number of groups.
    parts = qkv_TC.to(compute).index_select(0, groups.token_R).split(groups.sizes)
    keys: Sequence[Tensor | None] = [None] * len(parts)
    if dropout is not None:  # a key of 0 for a group without a sequence
        keys_BN = functional.pad(dropout.keys_BN(), (0, 0, 0, 1)).index_select(0, groups.order_B)
        keys = keys_BN.split([count for count, _ in groups.shapes])
    real: Sequence[Tensor | None] = [None] * len(parts)
    if groups.is_real_R is not None:
        real = groups.is_real_R.split(groups.sizes)
    contexts = []
    for shape, part, keys_GN, is_real in zip(groups.shapes, parts, keys, real, strict=True):
        q, k, v = part.view(*shape, 3, num_heads, width // num_heads).permute(2, 3, 0, 1, 4).contiguous().unbind(0)
        scores_NGSS = scores(q, k)
        if is_real is not None:  # a finite number, because a sequence of length 0 has no real key
            scores_NGSS = scores_NGSS.masked_fill(~is_real.view(*shape)[:, None, :], -1e30)
        weights_NGSS = scores_NGSS.softmax(-1)
        if dropout is not None and keys_GN is not None:
            weights_NGSS = weights_NGSS * probability_mask(dropout, keys_GN.T.flatten(), shape[1]).view_as(weights_NGSS)
            v = v * dropout.scale
        context_NGSH = weights_NGSS.to(compute) @ v
        contexts.append(context_NGSH.permute(1, 2, 0, 3).reshape(shape[0] * shape[1], width))
    # Back from slots to tokens; tokens of no sequence read the row of zeros after the last slot.
    zeros_1D = qkv_TC.new_zeros(1, width, dtype=compute)
    return torch.cat([*contexts, zeros_1D]).index_select(0, groups.slot_T).to(qkv_TC.dtype)
