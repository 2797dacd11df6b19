"""``config.json`` to and from our ``ModelConfig``."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import megabert
from megabert.config.model import ModelConfig
from megabert.errors import ConfigError
from megabert.tokenization import SpecialIds

OURS = "megabert_version"
"""Key by which a folder is known as an export of this package."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
}
"""Their ``hidden_act`` -> ours; the last two are one function."""

REQUIRED = {"model_type": "bert", "position_embedding_type": "absolute", "is_decoder": False}
"""What other models change; the first must be stated, the others are the default."""


def config_json(config: ModelConfig, *, architecture: str, special_ids: SpecialIds) -> dict[str, Any]:
    """Return the content of ``config.json``.

    Args:
        config: Shape; ``vocab_size`` is a number.
        architecture: Class of ``transformers`` that has all the exported weights.
        special_ids: Of the tokenizer.
    """
    shape = {field.name: getattr(config, field.name) for field in fields(config) if field.name != "preset"}
    return {
        "architectures": [architecture],
        **REQUIRED,
        **shape,
        "pad_token_id": special_ids.pad,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        OURS: megabert.__version__,
    }


def read_config_json(folder: Path) -> ModelConfig:
    """Read the shape of a BERT model.

    Args:
        folder: Holds ``config.json``.

    Raises:
        ConfigError: There is none, it is damaged, or it describes something else than BERT.
    """
    path = folder / "config.json"
    content = _read(path)
    for key, value in REQUIRED.items():
        if content.get(key, None if key == "model_type" else value) != value:
            raise ConfigError(f"{path}: {key}={content.get(key)!r}; only {value!r} is supported. Give a BERT encoder.")
    activation = content.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise ConfigError(f"{path}: hidden_act={activation!r}; supported are {', '.join(ACTIVATIONS)}.")
    names = {field.name for field in fields(ModelConfig)} - {"preset"}
    shape = {name: value for name, value in content.items() if name in names}
    if "vocab_size" not in shape:
        raise ConfigError(f"{path}: states no vocab_size. Give a complete Hugging Face folder.")
    try:
        return ModelConfig(**{**shape, "hidden_act": ACTIVATIONS[activation]})
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_task_fields(folder: Path) -> dict[str, Any]:
    """Return all of ``config.json``, for what a fine-tuned model says beyond its encoder's shape.

    Raises:
        ConfigError: There is none, or it is damaged.
    """
    return _read(folder / "config.json")


def is_ours(folder: Path) -> bool:
    """Tell whether a folder was exported by this package."""
    try:
        return OURS in _read(folder / "config.json")
    except ConfigError:
        return False


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: not found. Give a Hugging Face folder of a BERT model.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}. Fetch the folder again.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is not a JSON object. Fetch the folder again.")
    return content
