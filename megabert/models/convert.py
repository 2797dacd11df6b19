"""Weights to and from Hugging Face, exactly: the logits of both models are equal.

Four things differ. Names are mapped by ``key_maps``. Queries, keys and values are one parameter here (``qkv``) and
three there, but in DeBERTa's first version and ModernBERT. Our vocabulary is padded to a multiple of 64 rows. Our
positions begin with row 0, RoBERTa's after the id of the padding.
"""

import logging
import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from megabert.foundation.errors import CheckpointError
from megabert.models.build import build_model
from megabert.models.embedding_sharing import DIFFERENCE, GENERATOR, WORDS, trained_tables
from megabert.models.key_maps import DECODER, VOCABULARY_ROWS, to_ours, to_theirs
from megabert.settings.config.families import Objective
from megabert.settings.config.model import ModelConfig

# Our names and theirs of the attention projections, after ``key_maps``.
FUSED = re.compile(r"^(.*\.attention\.self)\.qkv\.(weight|bias)$")
SPLIT = re.compile(r"^(.*\.attention\.self)\.(query|key|value)\.(weight|bias)$")
BY_HEAD = re.compile(r"^(.*\.attention\.self)\.in_proj\.(weight)$")
"""DeBERTa's first version: one parameter with queries, keys and values of the first head, then of the second, ..."""
logger = logging.getLogger(__name__)

PARTS = ("query", "key", "value")
"""The order of the three in our fused parameter."""

POSITIONS = "bert.embeddings.position_embeddings.weight"
"""Our table begins with position 0; theirs may begin with rows that no token reads."""
UNREAD_POSITIONS = f"{POSITIONS}.unread"
"""Those rows, for a model that is written again. They are no parameter, and pre-training drops them."""

_SHARED = {None: "bert.embeddings.", "shared": WORDS}
"""Beginning of the names that generator and discriminator share, by ``embedding_sharing``; ELECTRA's share all of the
embeddings."""

POSITION_IDS = "bert.embeddings.position_ids"
"""An entry of some files that holds no weights: a counter."""
ENCODER = ("bert.encoder.", "bert.embeddings_project.", "bert.embeddings.word_embeddings.")
"""Beginnings of names of which every tensor is needed: one too many belongs to another encoder than config.json's."""


def to_huggingface(state: Mapping[str, Tensor], config: ModelConfig, *, pad_id: int = 0) -> dict[str, Tensor]:
    """Rename and split our parameters for the family's classes in ``transformers``.

    Args:
        state: Whole parameters (not ZeRO's partitions) by our names.
        config: Sizes and family of the model.
        pad_id: Id of [PAD] in the tokenizer; RoBERTa's positions begin after it.

    Returns:
        Contiguous tensors by Hugging Face's names, without the vocabulary's padding; tied weights once.
    """
    result: dict[str, Tensor] = {}
    for name, value in state.items():
        if name == UNREAD_POSITIONS:
            continue
        if name.endswith(VOCABULARY_ROWS):
            value = value[: config.vocab_size]
        if name == POSITIONS:  # RoBERTa: rows in front, up to the padding's id, that no token reads
            unread = value.new_zeros(unused_positions(config, pad_id), value.shape[1])
            if UNREAD_POSITIONS in state and state[UNREAD_POSITIONS].shape == unread.shape:
                unread = state[UNREAD_POSITIONS]
            value = torch.cat([unread, value])
        fused = FUSED.match(name)
        layout = config.traits.qkv_layout
        if fused and layout == "by_head":  # DeBERTa's first version: rows by head, then by Q, K, V
            theirs = to_theirs(f"{fused[1]}.in_proj.{fused[2]}", config.family)
            result[theirs] = _swap(value, 3, config.num_attention_heads)
        elif fused and layout == "split":
            prefix, kind = fused.groups()
            for part, rows in zip(PARTS, value.chunk(3), strict=True):
                result[to_theirs(f"{prefix}.{part}.{kind}", config.family)] = rows.contiguous()
        else:
            result[to_theirs(name, config.family)] = value.contiguous()
    bias = DECODER.replace("weight", "bias")
    if {DECODER, bias} <= state.keys():
        # Of a decoder of its own, transformers ties neither weight nor bias, and reads both under the decoder's name.
        theirs = to_theirs(DECODER, config.family).replace("weight", "bias")
        result.setdefault(theirs, result[to_theirs(bias, config.family)].clone())
    return result


def from_huggingface(
    state: Mapping[str, Tensor], config: ModelConfig, *, objective: Objective | None = None
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Rename and fuse Hugging Face's weights into ours.

    Args:
        state: Tensors by Hugging Face's names, with or without the encoder's prefix (``bert.``), with or without heads.
        config: Sizes and family that the weights should have.
        objective: Objective of the model that will take them, which decides its heads; None takes the family's usual
            one.

    Returns:
        Float32 parameters by our names, the vocabulary padded with zeros; our names that the weights lack (such as
        heads); their names that the model has no parameter for. Not parameters, but among them where the weights have
        them: ``UNREAD_POSITIONS``, and a ``DECODER`` of its own.

    Raises:
        CheckpointError: A weight has another shape than ``config`` says or holds no fractions, or one of Q, K and V is
            missing.
    """
    # Rename, fuse, and take the model's parameters; the rest is reported, except entries without weights of their own.
    renamed: dict[str, tuple[str, Tensor]] = {}
    for theirs, value in state.items():
        name = to_ours(theirs, config.family)
        if name in renamed and not _equal(renamed[name][1], value):
            logger.warning("%s is used and %s, which differs from it, is not", theirs, renamed[name][0])
        renamed[name] = (theirs, value)
    expected = parameter_shapes(config, objective=objective)
    for name, (theirs, value) in renamed.items():
        if _fused_name(name) in expected and not value.is_floating_point():
            raise CheckpointError(
                f"{theirs}: its numbers are of type {value.dtype}, as in a quantised model, which megabert "
                "does not read. Give the model's weights in float32, float16 or bfloat16."
            )
    values = _fuse({name: value for name, (_, value) in renamed.items()}, config)
    result = {
        name: _fit(name, values[name], expected[name], config) for name in sorted(expected.keys() & values.keys())
    }
    unexpected = [
        theirs
        for name, (theirs, _) in renamed.items()
        if _fused_name(name) not in result and name not in (POSITION_IDS, DECODER)
    ]
    missing = sorted(expected.keys() - result.keys() - {DIFFERENCE})
    # Not parameters, but they must not be lost in silence.
    words = values.get("bert.embeddings.word_embeddings.weight")
    if DECODER in values and (words is None or not _equal(values[DECODER], words)):
        result[DECODER] = values[DECODER].to(torch.float32)
    if POSITIONS in result and config.traits.positions_after_padding:
        result[UNREAD_POSITIONS] = values[POSITIONS][: -len(result[POSITIONS])].to(torch.float32)
    return result, missing, sorted(unexpected)


def split_generator(
    state: Mapping[str, Tensor], config: ModelConfig
) -> tuple[dict[str, Tensor], tuple[dict[str, Tensor], ModelConfig] | None]:
    """Separate generator and discriminator: ``transformers`` has a class and a folder for each.

    Returns:
        The discriminator's parameters; and the generator's, named as in a model of its own, with its
        configuration, or None if ``state`` has no generator.
    """
    own = {name: value for name, value in state.items() if not name.startswith(GENERATOR)}
    if len(own) == len(state):
        return own, None
    shared = {name: value for name, value in own.items() if _is_shared(name, config)}
    theirs = {name.removeprefix(GENERATOR): value for name, value in state.items() if name.startswith(GENERATOR)}
    return own, ({**shared, **theirs}, config.generator())


def join_generator(
    state: Mapping[str, Tensor], generator: Mapping[str, Tensor], config: ModelConfig
) -> dict[str, Tensor]:
    """Join generator and discriminator into one again, the inverse of ``split_generator``.

    Raises:
        CheckpointError: They do not share the embeddings that they were trained to share.
    """
    shared = {name for name in generator if _is_shared(name, config)}
    for name in sorted(shared):
        if not torch.equal(generator[name], state[name]):
            raise CheckpointError(
                f"generator: {name} is not the discriminator's. The two are trained with one set of embeddings: give "
                "the two folders of one training, or remove the generator's to begin with a new one."
            )
    return {**state, **{f"{GENERATOR}{name}": value for name, value in generator.items() if name not in shared}}


def _is_shared(name: str, config: ModelConfig) -> bool:
    """Whether a parameter is one and the same in generator and discriminator."""
    return config.embedding_sharing in _SHARED and name.startswith(_SHARED[config.embedding_sharing])


def unused_positions(config: ModelConfig, pad_id: int) -> int:
    """Return how many rows their position embeddings have before the first token's: in RoBERTa pad_id + 1, else 0."""
    return pad_id + 1 if config.traits.positions_after_padding else 0


def parameter_shapes(config: ModelConfig, *, objective: Objective | None = None) -> dict[str, torch.Size]:
    """Return the shape of every parameter of the model, by name, without allocating it."""
    with torch.device("meta"):
        model = build_model(config, objective=objective)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def is_finite(values: Tensor) -> bool:
    """Return whether no element is NaN or infinite."""
    return not values.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(values.detach()))).all())


def check_signal(state: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights that let nothing of a text through, as a conversion that failed leaves them.

    A layer's matrices may be zero, since its input is added to its output; word embeddings and gains may not.

    Raises:
        CheckpointError: All word embeddings, or all gains of a LayerNorm of the encoder, are zero.
    """
    for name, value in state.items():
        must_differ = name.startswith("bert.") and name.endswith(("word_embeddings.weight", "LayerNorm.weight"))
        if must_differ and not value.any():
            raise CheckpointError(
                f"{where}: all of {name} is zero, so that every text would give the same. Fetch or convert the model "
                "again."
            )


@torch.no_grad()
def load_parameters(model: nn.Module, state: Mapping[str, Tensor], *, may_lack: Iterable[str] = ()) -> None:
    """Copy whole parameters into a model by name; tied ones are one parameter.

    Args:
        model: Model whose parameters are whole, not partitioned by ZeRO-3.
        state: Tensors by our names, in any floating dtype.
        may_lack: Names that keep their present values where ``state`` lacks them.

    Raises:
        CheckpointError: Names or shapes differ.
    """
    # Everything is checked before anything is copied: a model is never left half loaded.
    parameters = dict(model.named_parameters())
    state = trained_tables({name: value for name, value in state.items() if name != UNREAD_POSITIONS}, parameters)
    missing = sorted(parameters.keys() - state.keys() - set(may_lack))
    unexpected = sorted(state.keys() - parameters.keys())
    wrong = [
        f"{name}: {tuple(state[name].shape)} for {tuple(parameter.shape)}"
        for name, parameter in parameters.items()
        if name in state and state[name].shape != parameter.shape
    ]
    if missing or unexpected or wrong:
        raise CheckpointError(
            f"weights do not fit the model: missing {missing[:5]}, unexpected {unexpected[:5]}, shapes {wrong[:5]}. "
            "Use the model configuration and objective that the weights were made with."
        )
    for name, value in state.items():
        parameters[name].copy_(value)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.float(), b.float())


def _fused_name(name: str) -> str:
    """Return the name of our fused parameter for a part of Q, K and V; other names stay."""
    return BY_HEAD.sub(r"\1.qkv.\2", SPLIT.sub(r"\1.qkv.\3", name))


def _swap(value: Tensor, first: int, second: int) -> Tensor:
    """Reorder rows that are grouped by (first, second) into groups by (second, first), such as (head, Q K V)."""
    return value.unflatten(0, (first, second, -1)).transpose(0, 1).flatten(0, 2).contiguous()


def _fuse(values: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Concatenate queries, keys and values to ``qkv``, whichever way they are stored."""
    # Split ones are collected by the name of the fused parameter, since files list them in any order.
    result: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in values.items():
        if split := SPLIT.match(name):
            prefix, part, kind = split.groups()
            parts.setdefault(f"{prefix}.qkv.{kind}", {})[part] = value
        elif BY_HEAD.match(name) and value.dim() == 2 and len(value) == 3 * config.hidden_size:
            result[_fused_name(name)] = _swap(value, config.num_attention_heads, 3)
        else:
            result[_fused_name(name)] = value
    for name, tensors in parts.items():
        if len(tensors) < len(PARTS):
            lacking = ", ".join(part for part in PARTS if part not in tensors)
            raise CheckpointError(f"{name}: the weights lack {lacking}. Export them again; the file is incomplete.")
        shapes = {part: tuple(tensors[part].shape) for part in PARTS}
        if len(set(shapes.values())) > 1 or () in shapes.values():
            shown = ", ".join(f"{part} {shape}" for part, shape in shapes.items())
            raise CheckpointError(f"{name}: the parts differ in shape: {shown}. Give weights that fit config.json.")
        result[name] = torch.cat([tensors[part] for part in PARTS])
    return result


def _fit(name: str, value: Tensor, shape: torch.Size, config: ModelConfig) -> Tensor:
    """Make float32, pad the vocabulary, cut unused positions, and check the shape."""
    value = value.to(torch.float32)
    if name == POSITIONS and config.traits.positions_after_padding:
        value = value[-shape[0] :] if value.dim() else value
    if name.endswith(VOCABULARY_ROWS) and value.shape == (config.vocab_size, *shape[1:]):
        value = torch.cat([value, value.new_zeros(shape[0] - value.shape[0], *shape[1:])])
    if value.shape != shape:
        raise CheckpointError(
            f"{to_theirs(name, config.family)}: shape {tuple(value.shape)} does not fit the model's {tuple(shape)}. "
            "Take model sizes and vocabulary from the folder's config.json."
        )
    return value.contiguous()
