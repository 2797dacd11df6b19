"""Read and write model folders in Hugging Face form."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from megabert.config.families import Objective
from megabert.config.model import ModelConfig
from megabert.errors import CheckpointError, ConfigError
from megabert.export.config_json import EXCHANGES, config_json, is_ours, read_config_json
from megabert.export.model_card import ModelCard, render_card
from megabert.export.tokenizer import fitting_tokenizer
from megabert.models.convert import from_huggingface, join_generator, split_generator, to_huggingface
from megabert.models.key_maps import to_theirs
from megabert.schema import publish_folder
from megabert.schema.files import NO_SPACE, disk_full
from megabert.tokenization import SpecialIds
from megabert.tokenization.huggingface import TOKENIZER_FILES

WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
"""In order of preference; an index of several files has the suffix ``.index.json``."""
TENSORFLOW_FILES = ("*.ckpt*.index", "tf_model*.h5")
"""google-research's checkpoints and Keras weights, which are recognised so that the error can say what to do."""
GENERATOR_FOLDER = "generator"
"""Below a discriminator's folder: the generator of an ELECTRA, a folder of the same form."""
EXPORTED_FILES = {"config.json", "model.safetensors", "README.md", GENERATOR_FOLDER, *TOKENIZER_FILES}
HEADS = ("cls.", "bert.pooler.", "discriminator_predictions.", "generator.")
"""What a folder may lack: newly initialised then, and said."""


class HuggingFaceModel(NamedTuple):
    """What a folder holds."""

    config: ModelConfig
    """Shape."""
    state: dict[str, Tensor]
    """Float32 parameters by our names, vocabulary padded."""
    missing_head_names: list[str]
    """Our names of pooler and heads that the folder lacks."""
    tokenizer_dir: Path
    """Where the tokenizer's files lie."""
    unused: dict[str, Tensor]
    """By their names, what has no place in a pre-training model, such as a task's head."""


class TaskHead(NamedTuple):
    """What a fine-tuned model has beyond its encoder."""

    architecture: str
    """Class of ``transformers``."""
    fields: dict[str, Any]
    """JSON-able, for config.json: labels and the like."""
    weights: dict[str, Tensor]
    """By their names."""


def read_huggingface(
    folder: Path, *, objective: Objective | None = None, config_only: bool = False
) -> HuggingFaceModel:
    """Read a model of any family: safetensors or ``pytorch_model.bin``, in one file or several.

    Prefix, pooler and heads may be there or not.

    Args:
        folder: Holds ``config.json`` (in old archives ``bert_config.json``) and weights.
        objective: Of the model that will take the weights; None: the family's usual one.
        config_only: Leave the weights alone; ``state`` is empty then.

    Raises:
        ConfigError: ``config.json`` is missing or of no family that is known here.
        CheckpointError: Weights are missing, damaged, or do not fit ``config.json``.
    """
    folder = Path(folder)
    config = read_config_json(folder)
    generator = folder / GENERATOR_FOLDER
    has_generator = config.generator_size is not None and (generator / "config.json").is_file()
    if has_generator:
        share = read_config_json(generator).hidden_size / config.hidden_size
        config = replace(config, generator_size=share)
    if config_only:
        return HuggingFaceModel(config, {}, [], folder, {})
    weights = _read_weights(folder)
    state, missing, unexpected = from_huggingface(weights, config, objective=objective)
    lost = [name for name in missing if not name.startswith(HEADS)]
    if lost:
        raise CheckpointError(
            f"{folder}: config.json says {config.family}, but the weights lack {len(lost)} parameters of such an "
            f"encoder, as {to_theirs(lost[0], config.family)}. Give a folder whose weights fit its config.json."
        )
    if has_generator:
        state = join_generator(state, read_huggingface(generator).state)
        missing = [name for name in missing if name not in state]
    return HuggingFaceModel(config, state, missing, folder, {name: weights[name] for name in unexpected})


def write_huggingface(
    folder: Path,
    *,
    state: Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer_dir: Path,
    card: ModelCard,
    task: TaskHead | None = None,
) -> None:
    """Write a folder that ``transformers`` loads; it appears whole or not at all.

    The architecture is the one whose heads ``state`` has; ELECTRA's generator is a folder within.

    Args:
        folder: New, empty, or an earlier export, which is replaced.
        state: Whole float32 parameters by our names.
        config: Their shape.
        tokenizer_dir: Its files are copied.
        card: For README.md.
        task: Of a fine-tuned model; ``state`` is its encoder then.

    Raises:
        ConfigError: The folder holds something else.
        DataError: The tokenizer does not fit the model.
    """
    folder = Path(os.path.abspath(folder))
    _check_replaceable(folder)
    tokenizer = fitting_tokenizer(Path(tokenizer_dir), config)
    own, generator = split_generator(state, config)
    rest: dict[str, Any] = {
        "tokenizer_dir": Path(tokenizer_dir),
        "special_ids": tokenizer.special_ids,
        "card": card,
        "task": task,
    }
    with publish_folder(folder) as new:
        try:
            _write_model(new, own, config, **rest)
            if generator is not None:
                (new / GENERATOR_FOLDER).mkdir()
                _write_model(new / GENERATOR_FOLDER, *generator, **rest)
        except (OSError, SafetensorError) as error:
            if getattr(error, "errno", None) in NO_SPACE or "os error 28" in str(error):  # safetensors has no errno
                raise disk_full(folder / "model.safetensors") from error
            raise


def _write_model(
    folder: Path,
    state: Mapping[str, Tensor],
    config: ModelConfig,
    *,
    tokenizer_dir: Path,
    special_ids: SpecialIds,
    card: ModelCard,
    task: TaskHead | None,
) -> None:
    """Write one model with its tokenizer and card into an empty folder."""
    floats = {name: value.detach().cpu().float() for name, value in state.items()}
    weights = to_huggingface(floats, config, pad_id=special_ids.pad)
    if task is None:
        task = TaskHead(EXCHANGES[config.family].architectures[_objective_of(state, config)], {}, {})
    weights |= {name: value.detach().cpu().float().contiguous() for name, value in task.weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    content = config_json(config, architecture=task.architecture, special_ids=special_ids) | task.fields
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    # safetensors makes its file private; others may read it where they may read config.json.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")
    for name in TOKENIZER_FILES:
        if (tokenizer_dir / name).is_file():
            shutil.copyfile(tokenizer_dir / name, folder / name)
    parameters = sum(value.numel() for value in weights.values())
    text = render_card(card, config, architecture=task.architecture, parameters=parameters)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _objective_of(state: Mapping[str, Tensor], config: ModelConfig) -> Objective | Literal["rtd"]:
    """Return what a model was trained for, by the heads that it has."""
    if "cls.seq_relationship.weight" in state:
        return config.traits.objectives[0]
    return "none" if config.generator_size is None else "rtd"


def _check_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is a file. Choose another folder.")
    names = {path.name for path in folder.iterdir()}
    foreign = sorted(names - EXPORTED_FILES)
    if foreign or (names and not is_ours(folder)):
        what = f"holds {foreign[0]}" if foreign else "was not exported by megabert"
        raise ConfigError(f"{folder}: {what}, so it is left alone. Choose a new folder, or an earlier export.")


def _read_weights(folder: Path) -> dict[str, Tensor]:
    for name in WEIGHTS_FILES:
        if (folder / name).is_file():
            return _read_file(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return {key: value for part in _parts(index) for key, value in _read_file(folder / part).items()}
    tensorflow = sorted(path.name for pattern in TENSORFLOW_FILES for path in folder.glob(pattern))
    if tensorflow:
        raise CheckpointError(
            f"{folder}: {tensorflow[0]} is a TensorFlow checkpoint, which megabert does not read. Fetch the model's "
            "model.safetensors from Hugging Face, which hosts google's checkpoints in that form, or convert the "
            "folder: from_pretrained(..., from_tf=True) and save_pretrained of transformers 4."
        )
    raise CheckpointError(
        f"{folder}: no weights; looked for {' and '.join(WEIGHTS_FILES)}. Fetch the folder with its weights."
    )


def _parts(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: is no index of weights: {error!r}. Fetch the file again.") from None


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}. Fetch the file again.") from None
    except Exception as error:  # pickle.UnpicklingError: something else than weights
        raise CheckpointError(f"{path}: holds more than weights: {error}. Convert it to safetensors.") from None
