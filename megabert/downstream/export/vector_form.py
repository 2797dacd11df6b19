"""How sentence-transformers makes vectors of an encoder's outputs: ``modules.json`` and the folders that it names.

As for config.json, every field is taken over, has to have one value, or changes nothing. A module or a field that is in
none of these tables is refused by its name, since the vectors would be others.
"""

# S tokens of a text, D width of a vector

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from megabert.downstream.export.config_fields import field_tables
from megabert.downstream.export.config_json import read_config_json, read_fields, stated_length
from megabert.downstream.export.huggingface import read_weights
from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.foundation.json_files import read_json
from megabert.tokens.tokenization import load_tokenizer

MODULES_FILE, TRANSFORMER_FILE = "modules.json", "sentence_bert_config.json"
PROMPTS_FILE = "config_sentence_transformers.json"
_FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""Families in older names of the encoder's file, in the order in which sentence-transformers looks for them."""
_IO = ("module_input_name", "module_output_name")
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Switches of older versions, in the order in which the vectors of several are joined, and their names in version 6."""
_POOLING_MODULES, _LAYERS = ("Pooling", "MultiVectorMask"), ("Normalize", "Dense", "Dropout")
MODULES = field_tables("module_fields.yaml")
"""The fields of each module that is read, and of the settings around them (``SentenceTransformer``)."""
_KINDS = {
    **dict.fromkeys(("max_seq_length", "truncate_dim"), int),
    **dict.fromkeys(("activation_function", "default_prompt_name", *_IO), str),
    "pooling_mode": str | list,
    "prompts": dict,
}
"""Types of fields that are taken over; the others are true or false."""
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
_REMEDY = "Use sentence-transformers for this folder, or give --pooling for vectors of the encoder alone."
POOL: Mapping[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda hidden_SD: hidden_SD[0],
    "mean": lambda hidden_SD: hidden_SD.mean(0),
    "max": lambda hidden_SD: hidden_SD.amax(0),
    "mean_sqrt_len_tokens": lambda hidden_SD: hidden_SD.sum(0) / len(hidden_SD) ** 0.5,
    "weightedmean": lambda hidden_SD: _growing_weights(hidden_SD) @ hidden_SD,
    "lasttoken": lambda hidden_SD: hidden_SD[-1],
    "tokens": lambda hidden_SD: hidden_SD,
}
"""Vectors of a text from its last hidden states, by the name of the pooling; ``tokens`` keeps each token's."""


def _growing_weights(hidden_SD: Tensor) -> Tensor:
    """Return weights of shape (S,) in proportion to the position (Muennighoff 2022, section 4.1)."""
    places_S = torch.arange(1, len(hidden_SD) + 1, dtype=hidden_SD.dtype, device=hidden_SD.device)
    return places_S / places_S.sum()


class _Dense(nn.Module):
    """A linear layer with an activation, in some models with a residual connection around both."""

    weight: Tensor
    bias: Tensor | None
    residual: Tensor | None

    def __init__(self, weights: Mapping[str, Tensor], activation: str, *, has_residual: bool) -> None:
        super().__init__()
        for name, part in (("weight", "linear.weight"), ("bias", "linear.bias"), ("residual", "residual.weight")):
            value = weights.get(part)
            self.register_buffer(name, None if value is None else value.float())  # some are stored in 16 bits
        self.activation: nn.Module = getattr(nn, activation)()
        self.has_residual, self.width = has_residual, len(weights["linear.weight"])

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(nn.functional.linear(x, self.weight, self.bias))
        if not self.has_residual:
            return y
        return y + (x if self.residual is None else nn.functional.linear(x, self.residual))


class _Normalize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1)


@dataclass(frozen=True)
class NamedModule:
    """An entry of ``modules.json``."""

    type: str
    """The class with its package."""
    path: str
    """The folder of its files; empty for the encoder's, which lie in the folder itself."""

    @property
    def name(self) -> str:
        """The class without its package."""
        return self.type.rpartition(".")[2]


@dataclass(frozen=True)
class VectorForm:
    """The steps from the last hidden states of a text to its vector."""

    poolings: tuple[str, ...] = ("mean",)
    """Keys of `POOL`; the vectors of several are joined."""
    layers: nn.Sequential = field(default_factory=nn.Sequential)
    """Further modules, which scale a vector to length 1 or give it another width."""
    max_length: int | None = None
    """Most tokens of a text, special ones included; None if only the model's positions limit it."""
    prompt: str = ""
    """Put in front of every text."""
    truncate_dim: int | None = None
    """How many numbers of a text's vector are kept, after all modules; None keeps all."""
    modules: tuple[NamedModule, ...] = ()
    """The modules that the folder names, the encoder first."""

    @property
    def has_tokens(self) -> bool:
        """Whether each token has a vector."""
        return "tokens" in self.poolings

    def width(self, hidden_size: int) -> int:
        """Return the size of a vector, given the encoder's width."""
        dense = [layer.width for layer in self.layers if isinstance(layer, _Dense)]
        width = dense[-1] if dense else hidden_size * len(self.poolings)
        return min(width, self.truncate_dim or width)

    def limit(self, positions: int) -> int:
        """Return the most tokens of a text, given the number of the model's positions."""
        return min(positions, self.max_length or positions)

    def pool(self, hidden_SD: Tensor) -> Tensor:
        """Return the vector of a text, of shape (D,), or one per token, of shape (S, D)."""
        vector = torch.cat([POOL[pooling](hidden_SD) for pooling in self.poolings], -1)
        return self.layers.to(vector.device)(vector)[..., : self.truncate_dim]


def read_vector_form(folder: Path) -> VectorForm | None:
    """Read how a folder's modules make vectors; None if it has no ``modules.json``.

    Raises:
        ConfigError: A module or a field is not known here, or has a value that is not.
        CheckpointError: The weights of a module are missing, or do not fit the module before it.
    """
    if not _is_listed(folder / MODULES_FILE):
        return None
    modules = _read_modules(folder / MODULES_FILE)
    path = find_transformer_file(folder)
    own = _read_fields(path, "Transformer")
    if own["do_lower_case"]:
        upper, lower = load_tokenizer(folder).encode_batch(["A", "a"])
        if upper.tolist() != lower.tolist():
            raise ConfigError(f"{path}: do_lower_case, but the tokenizer keeps case. {_REMEDY}")
    config, settings = read_config_json(folder), _read_fields(folder / PROMPTS_FILE, "SentenceTransformer")
    prompt = _default_prompt(folder / PROMPTS_FILE, settings)
    length = own["max_seq_length"] or stated_length(folder, config.max_position_embeddings)
    poolings = _read_poolings(folder / modules[1].path / "config.json", modules[1].name, prompt)
    layers, width = nn.Sequential(), config.hidden_size * len(poolings)
    for module in modules[2:]:
        path = folder / module.path / "config.json"
        fields = _read_fields(path, module.name)
        wanted = "token_embeddings" if poolings == ("tokens",) else "sentence_embedding"
        for name in _IO:
            if (fields.get(name) or wanted) != wanted:
                raise ConfigError(f"{path}: {name}={fields[name]!r}; only {wanted!r} is supported. {_REMEDY}")
        if module.name == "Normalize":
            layers.append(_Normalize())
        elif module.name == "Dense":
            layer = _read_dense(path, fields, width)
            layers.append(layer)
            width = layer.width
    kept = None if poolings == ("tokens",) else settings["truncate_dim"]  # a MultiVectorEncoder keeps all
    return VectorForm(poolings, layers, int(min(length, 1 << 30)) if length else None, prompt, kept, modules)


def find_transformer_file(folder: Path) -> Path:
    """Return the file with the encoder's settings, which in older folders is named after the family."""
    paths = [folder / f"sentence_{family}_config.json" for family in _FAMILIES]
    return next(filter(_is_listed, paths), paths[0])


def _read_modules(path: Path) -> tuple[NamedModule, ...]:
    """Return the entries of ``modules.json``: an encoder, one pooling, further layers."""
    modules = tuple(_read(path, list[NamedModule]))
    for place, module in enumerate(modules):
        known = {0: ("Transformer",), 1: _POOLING_MODULES}.get(place, _LAYERS)
        if not module.type.startswith("sentence_transformers.") or module.name not in known:
            what = f"module {place} is {module.type}; supported there: {', '.join(known)}"
        elif Path(module.path).name != module.path or bool(module.path) != bool(place):
            what = f"module {place} has the path {module.path!r}, which is not supported"
        else:
            continue
        raise ConfigError(f"{path}: {what}. {_REMEDY}")
    if len(modules) < 2:
        raise ConfigError(f"{path}: names no module that pools. {_REMEDY}")
    return modules


def _default_prompt(path: Path, settings: Mapping[str, Any]) -> str:
    """Return the prompt that sentence-transformers puts in front of every text unless it is given another one."""
    name, prompts = settings["default_prompt_name"], settings["prompts"] or {}
    prompt = None if name is None else prompts.get(name, ...)
    if not isinstance(prompt, str | None):
        raise ConfigError(f"{path}: default_prompt_name={name!r} is no prompt. {_REMEDY}")
    return prompt or ""


def _read_poolings(path: Path, name: str, prompt: str) -> tuple[str, ...]:
    """Return the poolings of the second module."""
    fields = _read_fields(path, name)
    if name == "MultiVectorMask":
        return ("tokens",)
    if prompt and fields["include_prompt"] is not True:
        raise ConfigError(f"{path}: include_prompt=False with the prompt {prompt!r} is not supported. {_REMEDY}")
    stated = fields["pooling_mode"] or [name for switch, name in _POOLINGS.items() if fields[switch]] or "mean"
    poolings = (stated,) if isinstance(stated, str) else tuple(stated)
    known = _POOLINGS.values()
    if unknown := [name for name in poolings if name not in known]:
        raise ConfigError(f"{path}: pooling_mode={unknown[0]!r}; supported are {', '.join(known)}. {_REMEDY}")
    return poolings


def _read_dense(path: Path, fields: Mapping[str, Any], width: int) -> _Dense:
    """Return a Dense layer with its weights, whose input has a width."""
    package, _, activation = fields["activation_function"].rpartition(".")
    if activation not in _ACTIVATIONS or not package.startswith("torch.nn"):
        supported = f"supported are {', '.join(_ACTIVATIONS)} of torch.nn"
        raise ConfigError(f"{path}: activation_function={fields['activation_function']!r}; {supported}. {_REMEDY}")
    try:
        layer = _Dense(read_weights(path.parent), activation, has_residual=fields["use_residual"])
        layer(torch.zeros(width))
    except (KeyError, IndexError, RuntimeError) as error:
        raise CheckpointError(
            f"{path.parent}: its weights fit no Dense layer of {width} inputs ({error}). Fetch the folder again."
        ) from None
    return layer


def _read_fields(path: Path, name: str) -> dict[str, Any]:
    """Return the fields of a module that are taken over; a file that is not there states none."""
    content = _read(path, dict[str, Any]) if _is_listed(path) else {}
    taken, problems = read_fields(content, MODULES[name])
    for field_name, value in taken.items():
        kind = _KINDS.get(field_name, bool)
        is_count = kind is not int or (type(value) is int and value > 0)
        if value is not None and not (isinstance(value, kind) and is_count):
            problems.append(f"{field_name}={value!r:.60} has another type or range than sentence-transformers writes")
    if problems:
        raise ConfigError(f"{path}: {'; '.join(problems)}. {_REMEDY}")
    return taken


def _is_listed(path: Path) -> bool:
    """Return whether a folder lists a file, even as a link to nowhere or a folder, which reading it refuses."""
    return path.is_symlink() or path.exists()


def _read(path: Path, cls: Any) -> Any:
    return read_json(path, cls, remedy="Fetch the folder again.", error=ConfigError)
