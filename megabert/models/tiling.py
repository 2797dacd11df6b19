"""A large model's first weights from a smaller one, tiled in depth and in width.

A large model that starts from a trained base reaches a loss in a part of the steps that it takes from random weights.
ModernBERT-large began so (Warner et al. 2024, arXiv:2412.13663, section 2.2 and its code), after Phi (Javaheripi et al.
2023) and Gopher (Rae et al. 2021, arXiv:2112.11446, appendix G.3.3):

- depth: of L layers from l, layer i is a copy of layer ``round(i * l / L)``, so that neighbours are repeated;
- width: the small matrix is put into the middle of the large one, and the rest is filled by going around, row by row
  and column by column: element j is ``(j - (N - n) // 2) mod n`` of the small one.

Heads stay whole: queries, keys, values, and what reads them are tiled by heads, which have to be of one width in both
models. Rows of positions and segments begin at the first one and go around, since they have an order.
"""

import logging
import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from megabert.foundation.errors import ConfigError
from megabert.models.convert import parameter_shapes
from megabert.models.embedding_sharing import DIFFERENCE, GENERATOR, GENERATOR_WORDS, WORDS
from megabert.settings.config.model import ModelConfig

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
