"""Dropout without state: whether an element is dropped is a hash of its position.

The hash is taken of instance seed, position, layer, site and column. So a mask depends neither on packing nor on
ranks, micro-batches or backends, and the backward pass computes it again: nothing is stored. The hash is lowbias32
(Wellons 2018), 32 bits in, 32 bits out, a bijection; every backend computes it in int32 words that wrap.

    row seed  = lowbias32(instance seed + position * 0x9E3779B9)
    row key   = lowbias32(row seed ^ lowbias32(number of the (layer, site)))
    element   = lowbias32(row key + column * 0x9E3779B9), survives if it is >= threshold as a signed number

The threshold is a multiple of 2**16: probabilities are rounded to multiples of 2**-16 (0.1 to 0.100006), and survivors
are scaled by the rounded one. The last xor-shift of an element's lowbias32 changes only bits below the
threshold's, so the fast implementations skip it.

Attention probabilities have a hash of their own, which decides about four of them.

A key, one per sequence and head, and two coordinates give a 32-bit word; four multiples of it each decide about one
element of a group: queries {q, q + 8} by keys {k, k + 8}, where bit 3 of q and k is 0. These four are in one thread of
a GPU wherever a tile of scores lies in the layout of its matrix instructions, transposed or not, so the forward and the
backward pass compute one hash where a hash of every element would take four.

    key    = lowbias32(instance seed ^ constant of layer, site and head)
    word   = key + q' * 0x9E3779B9 + k' * 0xC2B2AE35, where q' and k' are q and k without their bit 3
    word  ^= word >> 16;  word = word * FIRST + lowbias32(key + 0x9E3779B9);  word ^= word >> 15
    element of (bit 3 of q, bit 3 of k) survives if word * FACTORS[2 * bit of q + bit of k] >= threshold, signed

This is lowbias32 up to its last multiplication. The key enters twice because words of
two heads may begin close to one another; the second time separates them.

The constants of q' and k' give up to a length of 8,192 a different word to every group of a head: their lattice has no
shorter vector than 47,288. FACTORS are lowbias32's second multiplier times the powers of 0x6A2D551F, for which pairs,
triples and all four decisions are as even as a good congruential generator's (spectral test of dimensions 2 to
4, Knuth, The Art of Computer Programming, volume 2, section 3.3.4: at least 0.71 of the bound). Each decision alone has
its probability to the last bit, a multiple of 2**-16, because each factor is odd.
"""

# T packed tokens, B sequences, N heads, R rows, C columns, Z sequences * heads, S tokens, G = S / 2 rounded up to a
# multiple of 8

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megabert.foundation.randomness.lowbias32 import FIRST, SECOND, lowbias32
from megabert.foundation.randomness.lowbias32 import GOLDEN as UNSIGNED_GOLDEN
from megabert.ops.backend import choose
from megabert.ops.sequences import sequence_numbers

# The hash's constants, those above 2**31 as negative int32.
GOLDEN = UNSIGNED_GOLDEN - 2**32
MULTIPLIERS = (FIRST, SECOND - 2**32)
# Right shifts of int32 copy the sign into the upper bits; these masks clear it. They are tensors because a Python
# number costs a conversion at each use.
LOW_BITS = {shift: torch.tensor((1 << 32 - shift) - 1, dtype=torch.int32) for shift in (15, 16)}
KEY_STEP = 0xC2B2AE35 - 2**32
FACTORS = tuple(((MULTIPLIERS[1] * 0x6A2D551F**power + 2**31) & 0xFFFFFFFF) - 2**31 for power in range(4))
CHUNK = 1 << 18
"""Elements hashed at once on a CPU: scratch stays in the cache, and the overhead of a call is small."""

EMBEDDINGS, ATTENTION_PROBABILITIES, ATTENTION_OUTPUT, FEED_FORWARD_OUTPUT = range(4)
"""The sites: where in the model there is dropout. Their numbers are part of every hash."""


def lowbias32_(x: Tensor) -> Tensor:
    """Hash an int32 tensor in place, and return it."""
    scratch = torch.empty_like(x)
    _mix_(x, scratch)
    return xor_shift_(x, 16, scratch)


def xor_shift_(x: Tensor, bits: int, scratch: Tensor) -> Tensor:
    """Compute x ^= x >> bits in place, the shift filling with zeros."""
    torch.bitwise_right_shift(x, bits, out=scratch)
    return x.bitwise_xor_(scratch.bitwise_and_(LOW_BITS[bits]))


def _mix_(x: Tensor, scratch: Tensor) -> None:
    """Apply all of lowbias32 but its last xor-shift, in place."""
    for bits, multiplier in zip((16, 15), MULTIPLIERS, strict=True):
        xor_shift_(x, bits, scratch).mul_(multiplier)


@dataclass(frozen=True)
class DropoutRate:
    """How often elements are dropped."""

    probability: float
    """Probability of dropping an element, below 1, before it is rounded to a multiple of 2**-16."""

    @property
    def level(self) -> int:
        """The probability in units of 2**-16, of which there are at most 2**16 - 1: some elements survive."""
        return min(round(self.probability * 2**16), 2**16 - 1)

    @property
    def threshold(self) -> int:
        """The smallest hash, as a signed int32, with which an element survives."""
        return (self.level << 16) - 2**31

    @property
    def scale(self) -> float:
        """The factor of the survivors, which keeps the mean the same."""
        return 2**16 / (2**16 - self.level)


@dataclass(frozen=True)
class Dropout(DropoutRate):
    """The dropout of hidden states at one site."""

    row_keys: Tensor
    """Int32 of shape (T,)."""


def threshold_and_scale(dropout: DropoutRate | None) -> tuple[int, float]:
    """Return the two numbers that kernels take; without dropout, two that change nothing."""
    return (0, 1.0) if dropout is None else (dropout.threshold, dropout.scale)


@dataclass(frozen=True)
class DropoutStream:
    """Seeds of all dropout in one micro-batch; ``site`` derives the part of one place in the model."""

    row_seeds_T: Tensor
    """Int32, one seed per token."""
    seeds_B: Tensor
    """Int32, one seed per sequence."""

    @classmethod
    def from_batch(cls, instance_seeds_B: Tensor, cu_seqlens: Tensor, position_ids_T: Tensor) -> "DropoutStream":
        """Seed every token by its instance and its position in it.

        Args:
            instance_seeds_B: Int32, one per sequence.
            cu_seqlens: Int32 of shape (B + 1,), where each sequence starts.
            position_ids_T: Int64, position of each token in its sequence.
        """
        tokens = position_ids_T.numel()
        # Padding may have any seed: it gets 0.
        seeds_T = torch.nn.functional.pad(instance_seeds_B, (0, 1))[sequence_numbers(cu_seqlens, tokens)]
        return cls(lowbias32_(position_ids_T.to(torch.int32).mul_(GOLDEN).add_(seeds_T)), instance_seeds_B)

    def at(self, positions_R: Tensor) -> "DropoutStream":
        """Return the seeds of some tokens, given by their index, for ops that work on these alone."""
        return replace(self, row_seeds_T=self.row_seeds_T.index_select(0, positions_R))

    def site(self, layer: int, site: int, probability: float) -> Dropout | None:
        """Return the dropout of one site, or None if the probability rounds to zero.

        Args:
            layer: Number of the encoder layer, from 0; -1 for the embeddings.
            site: One of this module's sites, but for ``ATTENTION_PROBABILITIES``.
            probability: Probability of dropping an element, in [0, 1).
        """
        if round(probability * 2**16) == 0:
            return None
        # A bijection of seed ^ constant: rows that differ in their seed differ in their key at every site.
        run = choose("dropout_keys", "auto", self.row_seeds_T.device.type)
        return Dropout(probability, run(self.row_seeds_T, site_constant(layer, site)))


def row_keys_torch(seeds_T: Tensor, constant: int) -> Tensor:
    """Return lowbias32(seed ^ constant) of every token, int32 of shape (T,)."""
    return lowbias32_(seeds_T ^ constant)


def site_constant(layer: int, site: int, head: int = 0) -> int:
    """Return a different int32 for each layer (from -1), site (below 4) and head (below 4,096)."""
    hashed = lowbias32(((layer + 2) << 14) + (site << 12) + head)
    return hashed - 2**32 if hashed >= 2**31 else hashed


@functools.lru_cache(maxsize=4096)
def site_constants(layer: int, site: int, heads: int, device: torch.device) -> Tensor:
    """Return the constants of a site's heads, int32 of shape (N,), copied to a device once."""
    return torch.tensor([site_constant(layer, site, head) for head in range(heads)], dtype=torch.int32, device=device)


def keep_mask(dropout: Dropout, row_keys: Tensor, columns: int) -> Tensor:
    """Return a bool tensor of shape (*row_keys.shape, columns): True if an element survives."""
    offset_C = torch.arange(columns, device=row_keys.device, dtype=torch.int32).mul_(GOLDEN)
    return lowbias32_(row_keys[..., None] + offset_C) >= dropout.threshold


def keep_bits(dropout: Dropout, row_keys_R: Tensor, columns: int) -> Tensor:
    """Return int32 of shape (R, columns): -1 (all bits set) if an element survives, else 0.

    On a CPU an ``and`` with these bits is several times faster than anything that reads a bool mask.
    """
    offset_C = torch.arange(columns, device=row_keys_R.device, dtype=torch.int32).mul_(GOLDEN)
    bits_RC = row_keys_R[:, None] + offset_C
    _mix_(bits_RC, torch.empty_like(bits_RC))
    return bits_RC.ge_(dropout.threshold).neg_()  # 1 becomes -1


def select_(x: Tensor, keep_bits: Tensor) -> Tensor:
    """Set the elements that ``keep_bits`` does not keep to zero in place; the others are not scaled."""
    if x.dtype == torch.float32:
        x.view(torch.int32).bitwise_and_(keep_bits)
        return x
    return x.mul_(keep_bits.neg())


def masked(x_RC: Tensor, dropout: Dropout) -> Tensor:
    """Return ``x_RC`` with dropped elements zeroed and the others left as they are (not scaled)."""
    if x_RC.device.type != "cpu":
        keep_RC = keep_mask(dropout, dropout.row_keys, x_RC.shape[1])
        return torch.where(keep_RC, x_RC, torch.zeros((), dtype=x_RC.dtype, device=x_RC.device))
    # On a CPU chunk by chunk; float32 survives an ``and`` with all bits set, and becomes 0.0 by one with none.
    out = torch.empty_like(x_RC)
    step = max(1, CHUNK // max(1, x_RC.shape[1]))
    for first in range(0, x_RC.shape[0], step):
        rows = slice(first, first + step)
        bits_RC = keep_bits(dropout, dropout.row_keys[rows], x_RC.shape[1])
        if x_RC.dtype == torch.float32:
            torch.bitwise_and(x_RC[rows].view(torch.int32), bits_RC, out=out[rows].view(torch.int32))
        else:
            torch.mul(x_RC[rows], bits_RC.neg_().to(x_RC.dtype), out=out[rows])
    return out


def dropped_torch(x_RC: Tensor, dropout: Dropout) -> Tensor:
    """Return ``x_RC`` with elements dropped and the others scaled."""
    return masked(x_RC, dropout).mul_(dropout.scale)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RC: Tensor, dropout: Dropout, run: Callable[[Tensor, Dropout], Tensor]) -> Tensor:
        ctx.dropout, ctx.run = dropout, run
        return run(x_RC, dropout)

    @staticmethod
    def backward(ctx: Any, grad_RC: Tensor) -> tuple[Tensor, None, None]:
        return ctx.run(grad_RC.contiguous(), ctx.dropout), None, None


def dropout(x_TD: Tensor, site: Dropout | None, *, backend: str = "auto") -> Tensor:
    """Drop elements of hidden states and scale the others, forward and backward with the same mask.

    Args:
        x_TD: Hidden states.
        site: Site with row keys of shape (T,); None drops nothing.
        backend: ``auto``, ``triton`` or ``torch``.
    """
    if site is None:
        return x_TD
    return _Dropout.apply(x_TD.contiguous(), site, choose("dropout", backend, x_TD.device.type))


def survivors(x_TD: Tensor, site: Dropout) -> Tensor:
    """Return `masked` hidden states, whose gradient is masked as well."""
    return _Dropout.apply(x_TD.contiguous(), site, masked)


@dataclass(frozen=True)
class AttentionDropout(DropoutRate):
    """The dropout of the attention probabilities in one layer."""

    seeds_B: Tensor
    """Int32, one seed per sequence."""
    constants_N: Tensor
    """Int32, the constant of each head at this site."""

    def keys_BN(self) -> Tensor:
        """Return the key of every sequence and head, int32."""
        return lowbias32_(self.seeds_B[:, None] ^ self.constants_N)


class Heads(NamedTuple):
    """The heads of attention in one layer, with their dropout."""

    num_heads: int
    """N."""
    dropout: AttentionDropout | None = None
    """Dropout of the probabilities; None drops nothing."""


def attention_dropout(
    stream: DropoutStream | None, *, layer: int, probability: float, num_heads: int
) -> AttentionDropout | None:
    """Return the dropout of one layer's probabilities, or None if the probability rounds to zero.

    Args:
        stream: Seeds of the micro-batch; None drops nothing.
        layer: Number of the encoder layer, from 0.
        probability: Probability of dropping an element, in [0, 1).
        num_heads: N.
    """
    if stream is None or round(probability * 2**16) == 0:  # a threshold has 16 bits
        return None
    constants_N = site_constants(layer, ATTENTION_PROBABILITIES, num_heads, stream.seeds_B.device)
    return AttentionDropout(probability, stream.seeds_B, constants_N)


def probability_bits(dropout: AttentionDropout, keys_Z: Tensor, length: int) -> Tensor:
    """Return which probabilities survive, int32 of shape (Z, S, S) by query and key: -1 (all bits set), else 0.

    Args:
        dropout: Gives the threshold.
        keys_Z: Int32, the keys of some sequences and heads.
        length: S.
    """
    groups = -(-length // 16) * 8  # G: a group is two rows, 8 apart
    number_G = torch.arange(groups, device=keys_Z.device, dtype=torch.int32)
    word_ZGG = _words(keys_Z[:, None, None], number_G[:, None], number_G)
    scratch_ZGG = torch.empty_like(word_ZGG)
    # Group g has the queries (or keys) 16 * (g // 8) + g % 8 and 8 more: eight of each in turn.
    bits = word_ZGG.new_empty(len(keys_Z), groups // 8, 2, 8, groups // 8, 2, 8)
    for number, factor in enumerate(FACTORS):
        torch.mul(word_ZGG, factor, out=scratch_ZGG)
        decided = scratch_ZGG.ge_(dropout.threshold).neg_()  # 1 becomes -1
        bits[:, :, number >> 1, :, :, number & 1, :] = decided.view(len(keys_Z), groups // 8, 8, groups // 8, 8)
    return bits.view(len(keys_Z), 2 * groups, 2 * groups)[:, :length, :length]


def probability_mask(dropout: AttentionDropout, keys_Z: Tensor, length: int) -> Tensor:
    """Return ``probability_bits`` as bool: True if a probability survives."""
    return probability_bits(dropout, keys_Z, length) != 0


def probability_elements(dropout: AttentionDropout, keys: Tensor, queries: Tensor, columns: Tensor) -> Tensor:
    """Return which probabilities survive, bool, one hash per element: for pairs that lie in no matrix of a sequence.

    Args:
        dropout: Gives the threshold.
        keys: Int32, keys of sequences and heads.
        queries: Int32, positions of queries, of a shape that broadcasts against ``keys``.
        columns: Int32, positions of keys, likewise.
    """
    word = _words(keys, _without_bit_3(queries), _without_bit_3(columns))
    factors = torch.tensor(FACTORS, dtype=torch.int32, device=word.device)
    return word * factors[(queries >> 3 & 1) * 2 + (columns >> 3 & 1)] >= dropout.threshold


def _words(keys: Tensor, queries: Tensor, columns: Tensor) -> Tensor:
    """Return the word of each group of four, from its key and its q' and k', which broadcast."""
    word = keys + queries * GOLDEN + columns * KEY_STEP
    scratch = torch.empty_like(word)
    xor_shift_(word, 16, scratch)
    word.mul_(MULTIPLIERS[0]).add_(lowbias32_(keys + GOLDEN))
    return xor_shift_(word, 15, scratch)


def _without_bit_3(number: Tensor) -> Tensor:
    """Return numbers with the bits above bit 3 moved down by one."""
    return number >> 4 << 3 | number & 7
