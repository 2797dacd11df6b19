"""Read and write model folders in Hugging Face form: config.json, weights, the tokenizer's files and a model card."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from megabert.downstream.export import config_json as configs
from megabert.downstream.export.model_card import ModelCard, render_card
from megabert.downstream.export.model_folder import config_path
from megabert.foundation.errors import CheckpointError, DataError
from megabert.foundation.files import atomic_write
from megabert.foundation.full_disk import library_error
from megabert.foundation.json_files import read_json, write_json
from megabert.models import convert
from megabert.models.key_maps import DECODER, to_ours, to_theirs
from megabert.settings.config.families import Objective
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import Tokenizer, load_tokenizer
from megabert.tokens.tokenization.huggingface import copy_tokenizer

WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
"""Weights in order of preference. Large models have several files, and an index with the suffix ``.index.json``."""
TENSORFLOW_FILES = ("*.ckpt*.index", "tf_model*.h5")
"""google-research's checkpoints and Keras weights, which are recognised so that the error can say what to do."""
HEADS = ("cls.", "bert.pooler.", "discriminator_predictions.", "generator.")
"""Beginnings of the names that a folder may lack. They are initialised then, and the user is told."""


class HuggingFaceModel(NamedTuple):
    """A model as it was read from a folder."""

    config: ModelConfig
    state: dict[str, Tensor]
    """Float32 parameters by our names, with the vocabulary padded."""
    missing_head_names: list[str]
    """Our names of those parameters of pooler and heads that the folder lacks."""
    unused: dict[str, Tensor]
    """Weights that a pre-training model has no parameter for, such as a task's head, by Hugging Face's names."""


@dataclass(frozen=True)
class _Index:
    """An index of weights in several files."""

    weight_map: dict[str, str]
    """File of each weight."""


class TaskHead(NamedTuple):
    """The part of a fine-tuned model that is not its encoder."""

    architecture: str
    """Class of ``transformers`` that loads it."""
    fields: dict[str, Any]
    """Further fields of config.json, such as labels."""
    weights: dict[str, Tensor]
    """Weights of the head by Hugging Face's names."""


def read_huggingface(folder: Path, *, objective: Objective | None = None) -> HuggingFaceModel:
    """Read a model of any family: safetensors or ``pytorch_model.bin``, in one file or several.

    The prefix of the encoder's names, the pooler and the heads may be there or not.

    Args:
        folder: A folder with ``config.json`` (in archives of 2018 ``bert_config.json``) and weights.
        objective: Objective of the model that will take the weights; None is the family's usual one.

    Raises:
        ConfigError: ``config.json`` is missing, or describes no family that is known here.
        CheckpointError: The weights are missing or damaged, or do not fit ``config.json``.
    """
    config = configs.read_config_json(folder)
    weights = read_weights(folder)
    has_generator = config.generator_size is not None and (folder / configs.GENERATOR_FOLDER / "config.json").is_file()
    generator = read_huggingface(folder / configs.GENERATOR_FOLDER).state if has_generator else None
    try:
        state, missing, unexpected = convert.from_huggingface(weights, config, objective=objective)
        if generator is not None:
            state = convert.join_generator(state, generator, config)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    # Heads may be missing, the encoder may not.
    lost = [name for name in missing if not name.startswith(HEADS)]
    if lost:
        lacking = f"{len(lost)} parameters of such an encoder, as {to_theirs(lost[0], config.family)}"
        raise _misfit(folder, f"config.json says {config.family}, but the weights lack {lacking}")
    surplus = [name for name in unexpected if to_ours(name, config.family).startswith(convert.ENCODER)]
    if surplus:
        count = f"{len(surplus)} such weights are too many"
        raise _misfit(
            folder, f"the weights hold {surplus[0]}, which the encoder of config.json does not have ({count})"
        )
    missing = [name for name in missing if name not in state]  # the generator may have it
    convert.check_signal(state, str(folder))
    if convert.UNREAD_POSITIONS in state:
        # In a table of positions that is longer than config.json says, nobody knows which rows count.
        rows = config.max_position_embeddings + len(state[convert.UNREAD_POSITIONS])
        stated = configs.read_object(config_path(folder)).get("max_position_embeddings", rows)
        if rows != stated:
            raise _misfit(
                folder, f"config.json says max_position_embeddings={stated}, the weights have {rows} positions"
            )
    return HuggingFaceModel(config, state, missing, {name: weights[name] for name in unexpected})


def _misfit(folder: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{folder}: {problem}. Give a folder whose weights fit its config.json.")


def write_model_files(
    folder: Path,
    *,
    state: Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer_dir: Path,
    card: ModelCard,
    task: TaskHead | None = None,
) -> None:
    """Write the files that ``transformers`` loads into an empty folder.

    The architecture is the one whose heads ``state`` has. A discriminator's generator gets a folder within. The length
    that the card states is the tokenizer's as well.

    Args:
        folder: The folder that `open_export` yields.
        state: Whole float32 parameters by our names.
        config: The model's sizes and family.
        tokenizer_dir: Folder whose tokenizer files are copied.
        card: What README.md says.
        task: The head of a fine-tuned model, whose encoder is ``state``; None for a pre-trained model.

    Raises:
        DataError: The tokenizer does not fit the model, or the disk is full.
    """
    tokenizer = load_fitting_tokenizer(tokenizer_dir, config)
    special_ids = tokenizer.special_ids
    state, generator = convert.split_generator(state, config)
    # The heads of a pre-trained model tell its objective, and thereby its class.
    objective: Objective | Literal["rtd"] = "none" if config.generator_size is None else "rtd"
    if "cls.seq_relationship.weight" in state:
        objective = config.traits.objectives[0]
    head = task or TaskHead(configs.ARCHITECTURES[config.family][objective], {}, {})
    encoder = convert.to_huggingface(_plain_floats(state), config, pad_id=special_ids.pad)
    weights = encoder | _plain_floats(head.weights)
    try:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        raise library_error(error) or error from error
    is_tied = DECODER not in state
    content = configs.config_json(config, architecture=head.architecture, special_ids=special_ids, is_tied=is_tied)
    write_json(folder / "config.json", content | head.fields)
    # safetensors makes its file private: give it the permissions of config.json.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")
    copy_tokenizer(tokenizer_dir, folder)
    segments = ["token_type_ids"] if reads_segments(config, tokenizer) else []
    positions = config.max_position_embeddings
    length = card.longest or configs.stated_length(folder, positions) or positions
    state_settings(folder, model_input_names=["input_ids", *segments, "attention_mask"], model_max_length=length)
    if config.enhanced_mask_decoder and head.architecture == configs.ARCHITECTURES[config.family]["none"]:
        card = replace(card, pipeline="feature-extraction")  # transformers' class lacks the decoder that fills masks
    parameters = sum(value.numel() for value in weights.values())
    text = render_card(card, config, architecture=head.architecture, parameters=parameters)
    atomic_write(folder / "README.md", text)
    if generator is not None:
        inner, (state, config) = folder / configs.GENERATOR_FOLDER, generator
        inner.mkdir()
        # Forms such as vectors are the discriminator's, and so are its task and the lines that use them.
        card = replace(card, gives_vectors=False, usage=None, pipeline="fill-mask")
        write_model_files(inner, state=state, config=config, tokenizer_dir=tokenizer_dir, card=card)


def state_settings(folder: Path, **settings: Any) -> None:
    """Write settings of a model into all ``tokenizer_config.json`` of a folder.

    Args:
        folder: A folder; folders within, such as a generator's, count.
        settings: ``model_max_length``, the trained length, since positions after it are noise; ``model_input_names``,
            since the defaults of some classes leave segments out, or have them for a model without segments.
    """
    for path in folder.rglob("tokenizer_config.json"):
        write_json(path, {**configs.read_object(path), **settings}, ensure_ascii=False)


def _plain_floats(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().float().contiguous() for name, value in state.items()}


def load_fitting_tokenizer(folder: Path, model: ModelConfig) -> Tokenizer:
    """Load a tokenizer that has to fit a model. It reads spare pieces, since its texts are a user's, not a corpus.

    Raises:
        DataError: It has more pieces than the model has embeddings, or far fewer; or another piece has the id from
            which ``config.json`` counts positions.
    """
    tokenizer = load_tokenizer(folder, reads_spare=True)
    counted_from = configs.positions_counted_from(folder, model)
    if counted_from not in (None, tokenizer.special_ids.pad):
        raise DataError(
            f"{folder}: config.json counts positions from pad_token_id={counted_from}, and the tokenizer's padding is "
            f"{tokenizer.special_ids.pad}. Pieces of the id {counted_from} would then have a position of their own, "
            "which megabert does not compute. Give the tokenizer that the model was trained with."
        )
    pieces, rows = tokenizer.vocab_size, model.vocab_size
    if rows != "auto" and pieces > rows:
        raise DataError(
            f"{folder}: the tokenizer has {pieces:,} pieces, the model {rows:,} embeddings: the pieces from {rows:,} "
            "on have none. Give the tokenizer that the model was trained with."
        )
    if not model.fits_pieces(pieces):
        raise DataError(
            f"{folder}: the tokenizer has {pieces:,} pieces, the model {rows:,} embeddings; "
            f"up to {model.traits.max_spare_rows:,} spare ones are read. If it is the model's tokenizer, cut them: "
            f"resize_token_embeddings({pieces}) and save_pretrained of transformers."
        )
    return tokenizer


def reads_segments(model: ModelConfig, tokenizer: Tokenizer) -> bool:
    """Return whether the second text of a pair has a segment of its own.

    A RoBERTa may have a table of two, but transformers gives all tokens the first if two separators divide the texts.
    """
    return model.type_vocab_size > 1 and not (model.family == "roberta" and tokenizer.separators_in_pair > 1)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of a folder by the names in its files.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    for name in WEIGHTS_FILES:
        if (folder / name).is_file():
            return _read_file(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            remedy = "Fetch the file again."
            parts = set(read_json(index, _Index, remedy=remedy, error=CheckpointError).weight_map.values())
            outside = sorted(part for part in parts if Path(part).name != part)
            if outside:
                raise CheckpointError(f"{index}: names {outside[0]!r}, which is not a file next to it. {remedy}")
            return {key: value for part in sorted(parts) for key, value in _read_file(folder / part).items()}
    tensorflow = sorted(path.name for pattern in TENSORFLOW_FILES for path in folder.glob(pattern))
    if tensorflow:
        raise CheckpointError(
            f"{folder}: {tensorflow[0]} is a TensorFlow checkpoint, which megabert does not read. Fetch the model's "
            "model.safetensors from Hugging Face, which hosts google's checkpoints in that form, or convert the "
            "folder: from_pretrained(..., from_tf=True) and save_pretrained of transformers 4."
        )
    raise CheckpointError(f"{folder}: no weights; looked for {' and '.join(WEIGHTS_FILES)}. Fetch one of these.")


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)  # else a pickle may run any code
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}. Fetch the file again.") from None
    except Exception as error:  # pickle.UnpicklingError: the file holds other objects than tensors
        raise CheckpointError(f"{path}: holds more than weights: {error}. Convert it to safetensors.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, not weights by name. Give a model's weights.")
    # Files of the authors of DeBERTa hold their configuration as well.
    weights = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    for name, value in weights.items():
        if value.layout != torch.strided or value.nbytes > value.untyped_storage().nbytes():
            raise CheckpointError(f"{path}: {name} is no plain tensor of its size. Convert the file to safetensors.")
        if value.is_floating_point() and not convert.is_finite(value.float()):
            raise CheckpointError(
                f"{path}: {name} holds NaN or infinite numbers, with which nothing can be computed. Fetch the file "
                "again, or take another checkpoint of that model."
            )
    return weights
