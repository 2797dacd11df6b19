"""The models that a command line can name: a run folder, or a Hugging Face folder."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from megabert.checkpoints.format import read_checkpoint_manifest
from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.downstream.export.config_json import read_config_json, stated_length
from megabert.downstream.export.huggingface import load_fitting_tokenizer, read_huggingface
from megabert.downstream.export.model_folder import find_model, kind_of_folder
from megabert.downstream.export.vector_form import VectorForm, read_vector_form
from megabert.foundation.errors import CheckpointError, ConfigError, MegabertError
from megabert.models.build import InitialWeights, PretrainingModel, build_model, initialize, load_initial_weights
from megabert.models.key_maps import DECODER
from megabert.observability.logs import logger
from megabert.settings.command_line.arguments import Pooling
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import RunConfig
from megabert.tokens.tokenization import Tokenizer, load_tokenizer
from megabert.training.run.folder import checkpoints_dir, read_config, tokenizer_dir

Head = Literal["masked-LM", "sentence"]
HEADS: dict[Head, tuple[tuple[str, ...], str]] = {
    "masked-LM": (
        ("cls.predictions.", "cls.position_embeddings.", "generator."),
        "no head that guesses pieces ({}). Give a model as it was pre-trained, with its masked-LM head (an ELECTRA "
        "with its generator).",
    ),
    "sentence": (
        ("cls.seq_relationship.", "bert.pooler."),
        "no head for pairs of sentences ({}). Give a model as it was pre-trained on pairs, such as BertForPreTraining.",
    ),
}
"""For each head the beginnings of the names of its parameters, and the message if the weights lack one of them."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model's sizes, the folder of its tokenizer, and its weights, which are read when they are needed."""

    model: ModelConfig
    tokenizer_dir: Path
    weights: InitialWeights
    seed: int
    trained_length: Callable[[], int | None]
    """Returns the longest length that the weights were trained on, if it is known."""

    def build_untrained_model(self) -> PretrainingModel:
        """Return the model as its run began, with the random weights of its seed, in evaluation mode."""
        model = build_model(self.model)
        initialize(model, self.seed)
        return model.eval()

    def build_model(self, *, fills_masks: bool = False, judges_pairs: bool = False) -> PretrainingModel:
        """Return the model with its weights, in float32 on the CPU. Heads that the weights lack are random.

        Args:
            fills_masks: Whether the masked-LM head is needed.
            judges_pairs: Whether the sentence head is needed.

        Raises:
            CheckpointError: A head is needed, and the weights lack it or have one of another kind.
        """
        # Read first: weights that do not fit the sizes are refused before these sizes take their memory.
        state = self.weights.read()
        needed = {name: value for name, value in state.items() if fills_masks or not name.endswith(DECODER)}
        model = self.build_untrained_model()
        new = load_initial_weights(model, replace(self.weights, read=lambda: needed))
        needs: dict[Head, bool] = {"masked-LM": fills_masks, "sentence": judges_pairs}
        for head, (beginnings, message) in HEADS.items():
            lacking = [name for name in new if name.startswith(beginnings)]
            if needs[head] and lacking:
                missing = message.format(f"{lacking[0]} is missing")
                raise CheckpointError(f"{self.weights.source}: the weights have {missing}")
        return model

    def load_tokenizer(self) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            DataError: It does not fit the model.
        """
        return load_fitting_tokenizer(self.tokenizer_dir, self.model)

    @cached_property
    def longest(self) -> int:
        """Most tokens of a text: the positions after the longest trained length are noise."""
        return self.trained_length() or self.model.max_position_embeddings

    def pooled(self, pooling: Pooling) -> VectorForm:
        """Return how a text becomes a vector without any modules."""
        return VectorForm((pooling,), max_length=self.longest)

    @cached_property
    def vector_form(self) -> VectorForm:
        """How a text becomes a vector: as ``modules.json`` of the folder says, or by the mean of its tokens.

        Raises:
            ConfigError, CheckpointError: A module is not known here, or damaged.
        """
        return read_vector_form(self.tokenizer_dir) or self.pooled("mean")


def open_source(name: str, checkpoint: str = "last") -> Source:
    """Open a run folder or a Hugging Face folder. Its weights are read when they are needed.

    ``last`` and ``best`` are found once, so that all looks into a run that is still training see one checkpoint.

    Args:
        name: Path of the folder, or the name of a shipped model.
        checkpoint: The checkpoint of a run folder: ``last``, ``best`` or a step.

    Raises:
        ConfigError: The folder is neither of the two.
    """
    folder = find_model(name)
    is_run = kind_of_folder(name) == "run"

    @cache
    def checkpoint_folder() -> Path:
        return find_checkpoint(checkpoints_dir(folder), checkpoint, falls_back=False)

    if is_run:
        run, pieces = read_config(folder), tokenizer_dir(folder)
        model, seed = run.model, run.seed
        # The phase of the checkpoint may have a base of rotary positions of its own.
        if any(phase.global_rope_theta is not None for phase in run.phases):
            model = run.model_in_phase(read_checkpoint_manifest(checkpoint_folder()).run.phase)
    elif checkpoint == "last":
        model, seed, pieces = read_config_json(folder), 0, folder
    else:
        raise ConfigError(f"{folder}: a Hugging Face folder has no checkpoint {checkpoint}. Name a run folder.")

    def read() -> dict[str, Tensor]:
        if is_run:
            return read_masters(checkpoint_folder(), average=run.weights_of(checkpoint) == "average")
        content = read_huggingface(folder)
        if content.unused:
            logger.warning("%s: these weights are not used here: %s", folder, ", ".join(content.unused))
        return content.state

    def trained_length() -> int | None:
        if not is_run:
            return stated_length(folder, model.max_position_embeddings)
        return longest_trained(run, read_checkpoint_manifest(checkpoint_folder()).run.phase)

    weights = InitialWeights(source=str(folder), tokenizer_sha256=load_tokenizer(pieces).sha256, read=read)
    return Source(model=model, tokenizer_dir=pieces, weights=weights, seed=seed, trained_length=trained_length)


def longest_trained(run: RunConfig, phase: int) -> int | None:
    """Return the longest length that a run and the source of its weights have trained; None if that is not known.

    Args:
        run: The run.
        phase: The last phase that counts, from 0.
    """
    own = run.longest_before(phase + 1)
    if run.init_from is None:
        return own
    try:
        before = open_source(run.init_from).trained_length()
    except MegabertError:  # it is gone by now
        return None
    return before and max(own, before)


def find_device(name: str) -> torch.device:
    """Return the device that ``--device`` names: ``auto`` takes a GPU if there is one.

    Raises:
        ConfigError: ``cuda``, and there is no GPU.
    """
    device = torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
    if name == "cuda" and device.type == "cpu":
        raise ConfigError("--device cuda: this machine shows no GPU. Use --device cpu.")
    return device
