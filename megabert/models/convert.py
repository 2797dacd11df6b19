"""Weights to and from Hugging Face's BERT: names as tables of patterns, QKV fused, vocabulary padded."""

# V vocabulary, D hidden

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from megabert.config.model import ModelConfig
from megabert.errors import CheckpointError
from megabert.models.bert import BertForPreTraining, Objective

TO_HUGGINGFACE = [
    (r"^(bert\.encoder\.layer\.\d+\.(?:attention\.)?output)\.LayerNorm\.dense_bias$", r"\1.dense.bias"),
    (r"^(bert\.encoder\.layer\.\d+\.intermediate)\.activation\.bias$", r"\1.dense.bias"),
    (r"^(cls\.predictions\.transform)\.activation\.bias$", r"\1.dense.bias"),
    (r"^cls\.predictions\.decoder\.bias$", r"cls.predictions.bias"),
]
"""Our name -> theirs; a name that no pattern fits is the same."""

FROM_HUGGINGFACE = [
    (r"^(embeddings|encoder|pooler)\.", r"bert.\1."),  # a bare BertModel
    (r"\bLayerNorm\.gamma$", r"LayerNorm.weight"),  # files of 2018 and 2019
    (r"\bLayerNorm\.beta$", r"LayerNorm.bias"),
    (r"^(bert\.encoder\.layer\.\d+\.(?:attention\.)?output)\.dense\.bias$", r"\1.LayerNorm.dense_bias"),
    (r"^(bert\.encoder\.layer\.\d+\.intermediate)\.dense\.bias$", r"\1.activation.bias"),
    (r"^(cls\.predictions\.transform)\.dense\.bias$", r"\1.activation.bias"),
    (r"^cls\.predictions\.bias$", r"cls.predictions.decoder.bias"),
]
"""Their name -> ours, applied in order."""

FUSED = re.compile(r"^(.*\.attention\.self)\.qkv\.(weight|bias)$")
SPLIT = re.compile(r"^(.*\.attention\.self)\.(query|key|value)\.(weight|bias)$")
PARTS = ("query", "key", "value")
"""Their order in the fused parameter."""

VOCABULARY_ROWS = ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.bias")
"""Ours, padded to a multiple of 64 rows."""

DERIVED = ("bert.embeddings.position_ids", "cls.predictions.decoder.weight")
"""Theirs, found in some files, that hold no weights of their own: a counter, and the tied word embeddings."""


def to_huggingface(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Rename and split our parameters into those of ``BertForPreTraining`` (``BertForMaskedLM`` without a pooler).

    Args:
        state: Whole parameters by our names.
        config: Their shape.

    Returns:
        Contiguous tensors by Hugging Face's names, the vocabulary's padding cut; tied weights once.
    """
    result: dict[str, Tensor] = {}
    for name, value in state.items():
        if name in VOCABULARY_ROWS:
            value = value[: config.vocab_size]
        if fused := FUSED.match(name):
            prefix, kind = fused.groups()
            for part, piece in zip(PARTS, value.chunk(3), strict=True):
                result[f"{prefix}.{part}.{kind}"] = piece.contiguous()
        else:
            result[_rename(name, TO_HUGGINGFACE)] = value.contiguous()
    return result


def from_huggingface(
    state: Mapping[str, Tensor], config: ModelConfig, *, objective: Objective = "nsp"
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Rename and fuse Hugging Face's BERT weights into ours.

    Args:
        state: By Hugging Face's names; with or without the prefix ``bert.``, with or without heads.
        config: Shape that the weights should have.
        objective: Of the model that will take them.

    Returns:
        Float32 parameters by our names, vocabulary padded with zeros; our names that the weights lack (such as heads);
        their names that have no place in the model.

    Raises:
        CheckpointError: A weight has another shape than ``config`` says, or a part of Q, K, V is missing.
    """
    renamed = {_rename(name, FROM_HUGGINGFACE): (name, value) for name, value in state.items()}
    values = _fuse({name: value for name, (_, value) in renamed.items()})
    expected = parameter_shapes(config, objective=objective)
    result = {}
    for name in sorted(expected.keys() & values.keys()):
        result[name] = _fit(name, values[name].to(torch.float32), expected[name], config)
    derived = {name for name in DERIVED if name in values and _is_derived(name, values)}
    unexpected = [
        theirs
        for name, (theirs, _) in renamed.items()
        if SPLIT.sub(r"\1.qkv.\3", name) not in result and name not in derived
    ]
    return result, sorted(expected.keys() - result.keys()), sorted(unexpected)


def parameter_shapes(config: ModelConfig, *, objective: Objective = "nsp") -> dict[str, torch.Size]:
    """Return the shape of every parameter of the model, by name, without allocating it."""
    with torch.device("meta"):
        model = BertForPreTraining(config, objective=objective)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def count_parameters(config: ModelConfig) -> int:
    """Return the size of encoder and pooler, as papers state it: heads and the vocabulary's padding not counted."""
    shapes = parameter_shapes(config)
    padding = (config.padded_vocab_size - int(config.vocab_size)) * config.hidden_size
    return sum(shape.numel() for name, shape in shapes.items() if name.startswith("bert.")) - padding


@torch.no_grad()
def load_parameters(model: nn.Module, state: Mapping[str, Tensor], *, may_lack: Iterable[str] = ()) -> None:
    """Copy whole parameters into a model by name; tied ones are one parameter.

    Args:
        model: Its parameters are whole (not partitioned by ZeRO-3).
        state: By our names, in any floating dtype.
        may_lack: Names that keep their present values where ``state`` lacks them.

    Raises:
        CheckpointError: Names or shapes differ.
    """
    parameters = dict(model.named_parameters())
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


def _rename(name: str, table: list[tuple[str, str]]) -> str:
    for pattern, replacement in table:
        name = re.sub(pattern, replacement, name)
    return name


def _fuse(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Concatenate queries, keys and values."""
    result: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in values.items():
        if split := SPLIT.match(name):
            prefix, part, kind = split.groups()
            parts.setdefault(f"{prefix}.qkv.{kind}", {})[part] = value
        else:
            result[name] = value
    for name, pieces in parts.items():
        if len(pieces) < len(PARTS):
            lacking = ", ".join(part for part in PARTS if part not in pieces)
            raise CheckpointError(f"{name}: the weights lack {lacking}. Export them again; the file is incomplete.")
        result[name] = torch.cat([pieces[part] for part in PARTS])
    return result


def _fit(name: str, value: Tensor, shape: torch.Size, config: ModelConfig) -> Tensor:
    """Pad the vocabulary and check the shape."""
    if name in VOCABULARY_ROWS and value.shape[0] == config.vocab_size:
        value = torch.cat([value, value.new_zeros(shape[0] - value.shape[0], *shape[1:])])
    if value.shape != shape:
        raise CheckpointError(
            f"{_rename(name, TO_HUGGINGFACE)}: shape {tuple(value.shape)} does not fit the model's {tuple(shape)}. "
            "Take model sizes and vocabulary from the folder's config.json."
        )
    return value.contiguous()


def _is_derived(name: str, values: Mapping[str, Tensor]) -> bool:
    """Tell whether a tied decoder's weight really is the word embeddings."""
    if name == "cls.predictions.decoder.weight":
        return torch.equal(values[name], values["bert.embeddings.word_embeddings.weight"])
    return True
