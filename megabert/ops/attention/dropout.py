"""Dropout of attention probabilities: one hash decides about four of them.

A key, one per sequence and head, and two coordinates give a 32-bit word; four multiples of it each decide about one
element of a group: queries {q, q + 8} by keys {k, k + 8}, where bit 3 of q and k is 0. These four are in one thread of
a GPU wherever a tile of scores lies in the layout of its matrix instructions, transposed or not, so the forward and the
backward pass compute one hash where a hash of every element would take four.

    key    = lowbias32(instance seed ^ constant of layer, site and head)
    word   = key + q' * 0x9E3779B9 + k' * 0xC2B2AE35, where q' and k' are q and k without their bit 3
    word  ^= word >> 16;  word = word * FIRST + lowbias32(key + 0x9E3779B9);  word ^= word >> 15
    element of (bit 3 of q, bit 3 of k) survives if word * FACTORS[2 * bit of q + bit of k] >= threshold, signed

This is lowbias32 (see ``megabert.ops.dropout``) up to its last multiplication. The key enters twice because words of
two heads may begin close to one another; the second time separates them.

The constants of q' and k' give up to a length of 8,192 a different word to every group of a head: their lattice has no
shorter vector than 47,288. FACTORS are lowbias32's second multiplier times the powers of 0x6A2D551F, for which pairs,
triples and all four decisions are as even as a good congruential generator's (spectral test of dimensions 2 to
4, Knuth, The Art of Computer Programming, volume 2, section 3.3.4: at least 0.71 of the bound). Each decision alone has
its probability to the last bit, a multiple of 2**-16, because each factor is odd.
"""

# B sequences, N heads, Z sequences * heads, S tokens, G = S / 2 rounded up to a multiple of 8

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from megabert.ops import dropout as keyed

KEY_STEP = 0xC2B2AE35 - 2**32
FACTORS = tuple(((keyed.MULTIPLIERS[1] * 0x6A2D551F**power + 2**31) & 0xFFFFFFFF) - 2**31 for power in range(4))


@dataclass(frozen=True)
class AttentionDropout(keyed.DropoutRate):
    """The dropout of the attention probabilities in one layer."""

    seeds_B: Tensor
    """Int32, one seed per sequence."""
    constants_N: Tensor
    """Int32, the constant of each head at this site."""

    def keys_BN(self) -> Tensor:
        """Return the key of every sequence and head, int32."""
        return keyed.lowbias32_(self.seeds_B[:, None] ^ self.constants_N)


class Heads(NamedTuple):
    """The heads of attention in one layer, with their dropout."""

    num_heads: int
    """N."""
    dropout: AttentionDropout | None = None
    """Dropout of the probabilities; None drops nothing."""


def attention_dropout(
    stream: keyed.DropoutStream | None, *, layer: int, probability: float, num_heads: int
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
    constants_N = keyed.site_constants(layer, keyed.ATTENTION_PROBABILITIES, num_heads, stream.seeds_B.device)
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
    word = keys + queries * keyed.GOLDEN + columns * KEY_STEP
    scratch = torch.empty_like(word)
    keyed.xor_shift_(word, 16, scratch)
    word.mul_(keyed.MULTIPLIERS[0]).add_(keyed.lowbias32_(keys + keyed.GOLDEN))
    return keyed.xor_shift_(word, 15, scratch)


def _without_bit_3(number: Tensor) -> Tensor:
    """Return numbers with the bits above bit 3 moved down by one."""
    return number >> 4 << 3 | number & 7
