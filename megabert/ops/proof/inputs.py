"""Inputs of the problems: packed sequences, and the random numbers of their dropout."""

# T packed tokens, C = 3 * heads * head width

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from megabert.ops.dropout import Dropout, DropoutStream, Heads, attention_dropout, row_keys_torch, site_constant


def boundaries(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Return ``cu_seqlens`` of sequences end to end."""
    ends = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
    return ends.to(device=device, dtype=torch.int32)


def packed_positions(lengths: Sequence[int], tokens: int, device: torch.device) -> Tensor:
    """Return each token's position in its sequence, 0 for tokens past the last one."""
    positions = torch.zeros(tokens, dtype=torch.int64)
    positions[: sum(lengths)] = torch.cat([torch.arange(length) for length in lengths])
    return positions.to(device)


def near_positions(longest: int, span: int) -> Tensor:
    """Return a row for each distance, as DeBERTa's tables have them, int32 of shape (2 * longest - 1,) on the CPU.

    Args:
        longest: Tokens of the longest sequence.
        span: Half of the table. A side has at most span - 1 rows: one for each distance up to half of the span, then
            one for three, and the last for all beyond. At most 2 * span - 1 rows are used.
    """
    distance_E = torch.arange(1 - longest, longest)
    half = span // 2
    far_E = (distance_E.abs() - half).clamp(min=0)
    row_E = distance_E.sign() * (distance_E.abs().clamp(max=half) + (far_E + 2) // 3).clamp(max=span - 1)
    return (row_E - row_E[0]).to(torch.int32)


def dropout_stream(lengths: Sequence[int], tokens: int, device: torch.device) -> DropoutStream:
    """Return the random numbers of sequences of these lengths; tokens past them are padding."""
    seeds = torch.arange(1, len(lengths) + 1, dtype=torch.int32) * 7919
    return DropoutStream.from_batch(
        seeds.to(device), boundaries(lengths, device), packed_positions(lengths, tokens, device)
    )


class PackedHeads:
    """Sequences of some lengths, ``padding`` tokens after them, as attention in several heads reads them.

    ``dropout`` is the probability of dropping a probability.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        generator: torch.Generator,
        *,
        heads: int,
        head_width: int,
        padding: int = 0,
        dropout: float = 0.1,
    ) -> None:
        self.lengths, self.heads, self.head_width = lengths, heads, head_width
        self.device, self.tokens, self.longest = generator.device, sum(lengths) + padding, max(lengths)
        self.cu_seqlens = boundaries(lengths, self.device)
        self.positions_T = packed_positions(lengths, self.tokens, self.device)
        stream = dropout_stream(lengths, self.tokens, self.device)
        self.site = attention_dropout(stream, layer=3, probability=dropout, num_heads=heads)
        self.options: dict[str, Any] = {"num_heads": heads, "dropout": self.site}
        self.heads_and_dropout = Heads(heads, self.site)
        self.shapes = {"qkv_TC": (self.tokens, 3 * heads * head_width)}


def known_dropout(tokens: int, layer: int, site: int, device: torch.device, *, probability: float = 0.3) -> Dropout:
    """Return a site whose row keys were computed by plain torch on the CPU, whatever computes keys on the device."""
    stream = dropout_stream([tokens], tokens, torch.device("cpu"))
    return Dropout(probability, row_keys_torch(stream.row_seeds_T, site_constant(layer, site)).to(device))
