"""Queries, keys and attention probabilities of a text, recorded while the model itself runs.

The op is fused and returns neither scores nor probabilities. They are therefore computed again, from the queries and
keys that went into it: softmax(q k^T / sqrt(H)) is its definition (``ops.attention.reference``). The record also keeps
the op's output, so that probabilities times values can be compared with it. DeBERTa adds scores of relative positions,
which the record keeps separately (``ops.attention.disentangled``).
"""

# L layers, N heads, G sequences (one), S tokens, H head width, D = N * H

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from megabert.downstream.inspection.encode_text import check_outputs, pack_text
from megabert.models.bert import PretrainingModel
from megabert.models.deberta import DisentangledSelfAttention
from megabert.models.encoder import SelfAttention
from megabert.models.modern import RotarySelfAttention
from megabert.ops.attention.disentangled.cpu import RelativePositions, position_parts, score_divisor
from megabert.ops.attention.rotary.cpu import turn
from megabert.settings.command_line.arguments import checks_arguments
from megabert.tokens.tokenization import Tokenizer
from megabert.tokens.tokenization.written import readable_pieces


@dataclass(frozen=True, eq=False)
class AttentionRecord:
    """Inputs and outputs of every layer's attention, for one text."""

    pieces: list[str]
    """The text's S tokens."""
    segment_b_start: int
    """Index of the second text's first token; S without one."""
    q_LNSH: Tensor
    """Queries, in float32 on the CPU like all tensors of the record."""
    k_LNSH: Tensor
    """Keys."""
    v_LNSH: Tensor
    """Values."""
    context_LSD: Tensor
    """Output of the attention op, before the output projection."""
    reaches: tuple[int | None, ...]
    """For each layer, how many tokens to either side of a token it sees; None for a layer that sees the whole text."""
    position_scores_LNSS: Tensor | None = None
    """What relative positions add to the scores; None in all models but DeBERTa."""
    kinds: int = 1
    """Number of summands of a score: more than one in a DeBERTa (see ``score_divisor``)."""

    def is_seen_LSS(self) -> Tensor:
        """Return whether a layer lets a token (row) attend to another one (column): its window is a mask."""
        position_S = torch.arange(len(self.pieces))
        distance_SS = (position_S[:, None] - position_S).abs()
        return torch.stack([distance_SS <= (len(self.pieces) if r is None else r) for r in self.reaches])

    def scores(self) -> Tensor:
        """Return q k^T / sqrt(H), of shape (L, N, S, S), minus infinity outside of a layer's window.

        A DeBERTa's scores of positions are added.
        """
        scores_LNSS = self.q_LNSH @ self.k_LNSH.mT / score_divisor(self.q_LNSH.shape[-1], self.kinds)
        if self.position_scores_LNSS is not None:
            scores_LNSS = scores_LNSS + self.position_scores_LNSS
        return scores_LNSS.masked_fill(~self.is_seen_LSS()[:, None], -torch.inf)

    def probabilities(self) -> Tensor:
        """Return the softmax of the scores over keys, of shape (L, N, S, S)."""
        return self.scores().softmax(-1)


@checks_arguments
@torch.no_grad()
def record_attention(
    model: PretrainingModel, tokenizer: Tokenizer, text: str, second: str | None = None, *, longest: int | None = None
) -> AttentionRecord:
    """Run a text, or a pair of texts, through the model and keep the inputs of its attention.

    Args:
        model: The model, on any device, in evaluation mode.
        tokenizer: The model's tokenizer.
        text: First text; a mask is written as in the vocabulary.
        second: Second text.
        longest: Most tokens of both together; None reads the model's positions.

    Raises:
        ConfigError: The text is longer.
    """
    encoded, batch = pack_text(model, tokenizer, text, second, longest=longest)
    with _observing(model) as seen:
        check_outputs(model.bert(batch)[0])
    config, heads = model.config, model.config.num_attention_heads
    qkv_LS3NH = torch.stack(seen["qkv_TC"]).float().cpu().unflatten(-1, (3, heads, -1))
    q_LNSH, k_LNSH, v_LNSH = qkv_LS3NH.permute(2, 0, 3, 1, 4).unbind(0)
    return AttentionRecord(
        pieces=readable_pieces(tokenizer, encoded.ids.tolist()),
        segment_b_start=encoded.segment_b_start,
        q_LNSH=q_LNSH.contiguous(),
        k_LNSH=k_LNSH.contiguous(),
        v_LNSH=v_LNSH.contiguous(),
        context_LSD=torch.stack(seen["context_TD"]).float().cpu(),
        reaches=tuple(None if config.is_global(depth) else config.reach for depth in range(config.num_hidden_layers)),
        position_scores_LNSS=_position_scores(seen["qkv_TC"], seen["positions"], heads),
        kinds=seen["positions"][0].kinds if seen["positions"] else 1,
    )


def _position_scores(qkv: list[Tensor], positions_of: list[RelativePositions], heads: int) -> Tensor | None:
    """Return the scores of relative positions; None for a model without them."""
    scores_LNSS = []
    for qkv_TC, positions in zip(qkv, positions_of, strict=False):
        # As in the model, the queries carry the scale, and the one sequence is a batch of G = 1.
        q_NGSH, k_NGSH, _ = qkv_TC.unflatten(-1, (3, heads, -1)).permute(1, 2, 0, 3)[:, :, None].contiguous()
        scale = 1 / score_divisor(q_NGSH.shape[-1], positions.kinds)
        parts = position_parts(q_NGSH * scale, k_NGSH, positions, scale=scale)
        scores_LNSS.append(torch.stack(list(parts)).sum(0)[:, 0])
    return torch.stack(scores_LNSS).float().cpu() if scores_LNSS else None


@contextmanager
def _observing(model: nn.Module) -> Iterator[dict[str, list[Any]]]:
    """Keep what goes into and comes out of every attention op while the block runs, in the order in which layers run.

    A layer whose weights are shared (ALBERT) adds a tensor for each pass.
    """
    seen: dict[str, list[Any]] = defaultdict(list)

    # The inputs are projected a second time: no hook observes the methods by which a DeBERTa projects contents and
    # positions, and the op itself turns the queries and keys of a ModernBERT. One sequence is observed, so its tokens
    # turn like the first positions.
    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        x_TD, packing, _ = inputs
        match module:
            case DisentangledSelfAttention():
                seen["qkv_TC"].append(module.project_contents(x_TD))
                seen["positions"].append(module.project_positions(packing))
            case RotarySelfAttention():
                turns_T2E = packing.turns[module.is_global][: len(x_TD)]
                seen["qkv_TC"].append(turn(module.qkv(x_TD), turns_T2E, num_heads=module.num_heads))
            case SelfAttention():
                seen["qkv_TC"].append(module.qkv(x_TD)[0])
        seen["context_TD"].append(output)

    kinds = (SelfAttention, RotarySelfAttention, DisentangledSelfAttention)
    handles = [module.register_forward_hook(keep) for module in model.modules() if isinstance(module, kinds)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
