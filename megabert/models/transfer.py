"""First weights out of a model of another size or vocabulary.

A smaller model is tiled in depth and in width. A large model that starts from a trained base reaches a loss in a part
of the steps that it takes from random weights. ModernBERT-large began so (Warner et al. 2024, arXiv:2412.13663, section
2.2 and its code), after Phi (Javaheripi et al. 2023) and Gopher (Rae et al. 2021, arXiv:2112.11446, appendix G.3.3):

- depth: of L layers from l, layer i is a copy of layer ``round(i * l / L)``, so that neighbours are repeated;
- width: the small matrix is put into the middle of the large one, and the rest is filled by going around, row by row
  and column by column: element j is ``(j - (N - n) // 2) mod n`` of the small one.

Heads stay whole: queries, keys, values, and what reads them are tiled by heads, which have to be of one width in both
models. Rows of positions and segments begin at the first one and go around, since they have an order.

For another vocabulary than the one that they were trained for, the rows of word embeddings and the decoder's bias are
made anew. What both vocabularies have keeps its row. A new piece begins as the mean of the rows of the old pieces that
its text consists of (Gee et al. 2022, "Fast Vocabulary Transfer for Language Model Compression", arXiv:2402.09977), and
one that the old tokenizer cannot write as the mean of all (Hewitt 2021), the guess of a model that knows nothing of it.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional

from megabert.foundation.errors import ConfigError
from megabert.models.convert import parameter_shapes
from megabert.models.embedding_sharing import DIFFERENCE, GENERATOR, GENERATOR_WORDS, WORDS
from megabert.models.key_maps import VOCABULARY_ROWS
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import Tokenizer
from megabert.tokens.tokenization.written import WrittenPiece, written_pieces

logger = logging.getLogger(__name__)

_LAYER = re.compile(r"^(.*\.encoder\.layer\.)(\d+)(\..*)$")
_ROWS_BY_HEAD = re.compile(r"\.attention\.self\.(query_bias|value_bias|position_key\.\w+|position_query\.\w+)$")
_ROWS_IN_ORDER = re.compile(r"\.(position_embeddings|token_type_embeddings)\.weight$")
_FIXED_ROWS = re.compile(
    r"\.(word_embeddings|relative)\.weight$|\.decoder\.bias$|seq_relationship\.|dense_prediction\."
)


def tile_weights(state: Mapping[str, Tensor], source: ModelConfig, target: ModelConfig) -> dict[str, Tensor]:
    """Return the parameters of a larger model, filled from a smaller one of the same family.

    Args:
        state: Whole parameters of the source, by our names.
        source: Its sizes.
        target: The sizes to fill.

    Returns:
        Parameters by name; parameters that the source lacks, such as a head, are missing.

    Raises:
        ConfigError: The target is smaller somewhere, or its heads are of another width.
    """
    check_sizes(source, target)
    layers = _count_layers(state)
    shapes = parameter_shapes(target)
    shapes.pop(DIFFERENCE, None)
    if any(name.startswith(GENERATOR) for name in shapes) and target.embedding_sharing is not None:
        shapes[GENERATOR_WORDS] = shapes[WORDS]  # whole tables are tiled
    depths = _count_layers(shapes)
    result = {}
    for name, shape in shapes.items():
        match, origin = _LAYER.match(name), name
        if match and match[1] in layers:
            prefix, number, rest = match.groups()
            origin = f"{prefix}{source_layer(int(number), layers[prefix], depths[prefix])}{rest}"
        if origin in state:
            is_generator = name.startswith(GENERATOR)
            heads = (target.generator() if is_generator else target).num_attention_heads
            old_heads = (source.generator() if is_generator else source).num_attention_heads
            result[name] = _tile(name, state[origin], shape, old_heads=old_heads, heads=heads)
    sizes = [f"{model.num_hidden_layers} layers, {model.hidden_size} wide" for model in (source, target)]
    logger.info("initial weights: %s, tiled to %s", *sizes)
    return result


def source_layer(layer: int, source_layers: int, layers: int) -> int:
    """Return which of ``source_layers`` layers is copied to a layer of ``layers``."""
    return min(round(layer * source_layers / layers), source_layers - 1)


def tile(value: Tensor, dim: int, size: int, *, from_middle: bool = True) -> Tensor:
    """Return a tensor that is tiled along one dimension to a size that is no smaller."""
    old = value.shape[dim]
    offset = (size - old) // 2 if from_middle else 0
    return value.index_select(dim, (torch.arange(size) - offset) % old)


def _tile(name: str, value: Tensor, shape: torch.Size, *, old_heads: int, heads: int) -> Tensor:
    """Tile one parameter to its new shape."""
    # Heads become a dimension of their own, so that a tile never begins inside of one.
    if ".attention.self.qkv." in name:
        return tile(_columns(value.unflatten(0, (3, old_heads, -1)), shape), 1, heads).flatten(0, 2)
    if _ROWS_BY_HEAD.search(name):
        return tile(_columns(value.unflatten(0, (old_heads, -1)), shape), 0, heads).flatten(0, 1)
    if name.endswith(".input_and_gate.weight"):  # two matrices in one
        return tile(_columns(value.unflatten(0, (2, -1)), shape), 1, shape[0] // 2).flatten(0, 1)
    if name.endswith((".attention.output.dense.weight", ".attention.output.weight")):
        return tile(tile(value.unflatten(1, (old_heads, -1)), 1, heads).flatten(1, 2), 0, shape[0])
    if _FIXED_ROWS.search(name) and len(value) != shape[0]:
        raise ConfigError(
            f"init_tiling: {name} has {len(value)} rows in the source and {shape[0]} here, which is another meaning, "
            "not another width. Leave those fields of the model as they are in the source."
        )
    rows = tile(value, 0, shape[0], from_middle=not _ROWS_IN_ORDER.search(name))
    return _columns(rows, shape)


def _columns(value: Tensor, shape: torch.Size) -> Tensor:
    """Tile the inputs of a matrix, its last dimension; a vector has none, and a convolution's are followed by taps."""
    if len(shape) == 1:
        return value
    return tile(value, 1, shape[1]) if len(shape) == 3 else tile(value, value.dim() - 1, shape[-1])


def _count_layers(names: Iterable[str]) -> dict[str, int]:
    """Return the number of layers of each encoder by the beginning of its names."""
    counts: dict[str, int] = {}
    for match in filter(None, map(_LAYER.match, names)):
        counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    return counts


def check_sizes(source: ModelConfig, target: ModelConfig) -> None:
    """Refuse a target that cannot be filled by tiling.

    Raises:
        ConfigError: It is smaller somewhere, or its heads are of another width.
    """
    fields = ["hidden_size", "num_hidden_layers", "intermediate_size", "embedding_width", "max_position_embeddings"]
    sizes = {name: (getattr(source, name), getattr(target, name)) for name in fields}
    if source.generator_size and target.generator_size:
        sizes["generator_layers"] = (source.generator().num_hidden_layers, target.generator().num_hidden_layers)
    for name, (old, new) in sizes.items():
        if new < old:
            raise ConfigError(
                f"init_tiling: model.{name}={new} is below the source's {old}, and tiling fills larger models. "
                "Raise it, or take a smaller source."
            )
    widths = [model.hidden_size // model.num_attention_heads for model in (source, target)]
    if widths[0] != widths[1]:
        heads = target.hidden_size / widths[0]
        raise ConfigError(
            f"init_tiling: model.num_attention_heads={target.num_attention_heads} makes heads {widths[1]} wide, the "
            f"source's are {widths[0]}, and a head is copied whole. Take {heads:g} heads, or another hidden_size."
        )


@dataclass(frozen=True)
class VocabularyTransfer:
    """Which rows of an old vocabulary each piece of a new one begins with."""

    parts: tuple[tuple[int, ...], ...]
    """For each new piece the old ids whose rows it is the mean of; one if both vocabularies have it, none if the old
    one cannot write it."""
    old_size: int
    """Pieces of the old vocabulary."""
    kept: int
    """Pieces, special ones included, that both have."""

    def rows(self, value: Tensor) -> Tensor:
        """Return the new rows, padded with zeros to a multiple of 64.

        Args:
            value: Old rows, a matrix, or a vector with a number for each piece; rows past the vocabulary's end
                are not read.
        """
        old = value[: self.old_size].unflatten(0, (-1, 1)) if value.dim() == 1 else value[: self.old_size]
        starts = torch.tensor([0, *map(len, self.parts)]).cumsum(0)[:-1]
        flat = torch.tensor(list(chain.from_iterable(self.parts)), dtype=torch.int64)
        rows = functional.embedding_bag(flat, old, starts, mode="mean")
        rows[[index for index, part in enumerate(self.parts) if not part]] = old.mean(0)
        padded = functional.pad(rows, (0, 0, 0, -len(rows) % 64))
        return padded.flatten() if value.dim() == 1 else padded


def plan_transfer(old: Tokenizer, new: Tokenizer) -> VocabularyTransfer:
    """Find the old pieces of every new one.

    Raises:
        ConfigError: The two vocabularies share no piece.
    """
    speller, pieces = _Speller(old), written_pieces(new)
    special = dict(zip(new.special_ids, old.special_ids, strict=True))
    shared = [special.get(index, speller.ids.get(piece)) for index, piece in enumerate(pieces)]
    kept = sum(index is not None for index in shared)
    if kept <= len(special):
        raise ConfigError(
            f"init_vocabulary=transfer: none of the {new.vocab_size:,} pieces in {new.where} is one of the "
            f"{old.vocab_size:,} in {old.where}, so that nothing would be kept. Take a vocabulary that shares pieces "
            "with the source's, or begin with random weights, without --init-from."
        )
    spelt = iter(speller.spell([piece for piece, index in zip(pieces, shared, strict=True) if index is None]))
    parts = tuple(next(spelt) if index is None else (index,) for index in shared)
    return VocabularyTransfer(parts, old.vocab_size, kept)


def transfer_vocabulary(state: Mapping[str, Tensor], transfer: VocabularyTransfer) -> dict[str, Tensor]:
    """Return parameters by our names with the rows of the new vocabulary, and log their origin."""
    pieces, unwritten = len(transfer.parts), sum(not part for part in transfer.parts)
    origins = "%d keep their rows, %d begin as the mean of their old pieces"
    rest = "%d, which the old tokenizer cannot write, as the mean of all"
    counts = (transfer.kept, pieces - transfer.kept - unwritten, unwritten)
    logger.info(f"initial weights: of %d pieces {origins}, {rest}", pieces, *counts)
    return {name: transfer.rows(value) if name.endswith(VOCABULARY_ROWS) else value for name, value in state.items()}


class _Speller:
    """Writes pieces with the pieces of another tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.ids = {piece: index for index, piece in enumerate(written_pieces(tokenizer))}

    def spell(self, pieces: Sequence[WrittenPiece]) -> list[tuple[int, ...]]:
        """Return the ids that write each piece; none if they cannot."""
        texts = [piece.decode() or "" for piece in pieces]
        inside, first = self._tokenizer.encode_batch(texts), self._tokenizer.encode_words(texts)
        result = []
        for piece, text, within, at_start in zip(pieces, texts, inside, first, strict=True):
            if not text and piece.text:
                ids = self._spell_bytes(piece.text)
            elif piece.begins_word:
                ids = at_start.tolist()
            else:
                # Most tokenizers write any text as words; where the longest old pieces that fit inside one write all of
                # it, as WordPiece does after the first piece, these are taken.
                ids = self._spell_inside(self._tokenizer.normalize(text)) or within.tolist()
            result.append(() if self._tokenizer.special_ids.unk in ids else tuple(ids))
        return result

    def _spell_inside(self, text: str) -> list[int]:
        """Cut a text into the longest pieces that occur within words; nothing if they do not write all of it."""
        ids: list[int] = []
        while text:
            starts = (text[:end] for end in range(len(text), 0, -1))
            found = ((start, self.ids.get(WrittenPiece(start.encode(), False))) for start in starts)
            start, index = next((pair for pair in found if pair[1] is not None), ("", None))
            if index is None:
                return []
            ids.append(index)
            text = text[len(start) :]
        return ids

    def _spell_bytes(self, text: bytes) -> list[int]:
        """Return the pieces of single bytes, which only byte-level BPE has, for a part of a character."""
        ids = [self.ids.get(WrittenPiece(bytes([byte]), False)) for byte in text]
        return [] if None in ids else [index for index in ids if index is not None]
