"""The models that a command line can name: a run folder, or a Hugging Face folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.config.model import ModelConfig
from megabert.errors import CheckpointError, ConfigError
from megabert.export.config_json import config_path
from megabert.export.huggingface import load_fitting_tokenizer, read_huggingface
from megabert.models.build import InitialWeights, PretrainingModel, build_model, initialize, load_initial_weights
from megabert.tokenization import Tokenizer, load_tokenizer
from megabert.training.run.folder import CONFIG_NAME, checkpoints_dir, read_config, tokenizer_dir

MASKED_LM = ("cls.predictions.", "generator.")
"""Beginnings of the names of the parameters that fill masks."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model's sizes, the folder of its tokenizer, and its weights, which are read when they are needed."""

    model: ModelConfig
    tokenizer_dir: Path
    weights: InitialWeights
    seed: int = 0

    def build_untrained_model(self) -> PretrainingModel:
        """Return the model as its run began, with the random weights of its seed."""
        model = build_model(self.model)
        initialize(model, self.seed)
        return model

    def build_model(self, *, fills_masks: bool = False) -> PretrainingModel:
        """Return the model with its weights, in float32 on the CPU. Heads that the weights lack are random.

        Args:
            fills_masks: Whether the masked-LM head is needed.

        Raises:
            CheckpointError: The masked-LM head is needed, and the weights lack it.
        """
        model = self.build_untrained_model()
        lacking = [name for name in load_initial_weights(model, self.weights) if name.startswith(MASKED_LM)]
        if fills_masks and lacking:
            raise CheckpointError(
                f"{self.weights.source}: the weights have no head that guesses pieces ({lacking[0]} is missing). Give "
                "a model as it was pre-trained, with its masked-LM head (an ELECTRA with its generator)."
            )
        return model

    def load_tokenizer(self) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            DataError: It does not fit the model.
        """
        return load_fitting_tokenizer(self.tokenizer_dir, self.model)


def open_source(name: str, checkpoint: str = "last") -> Source:
    """Open a run folder or a Hugging Face folder. Its weights are read when they are needed.

    Args:
        name: Path of the folder.
        checkpoint: The checkpoint of a run folder: ``last``, ``best`` or a step.

    Raises:
        ConfigError: The folder is neither of the two.
    """
    folder = Path(name)
    if (folder / CONFIG_NAME).is_file():
        return _open_run(folder, checkpoint)
    if config_path(folder).is_file():
        return _open_huggingface(folder)
    raise ConfigError(
        f"{folder}: neither a run folder (no {CONFIG_NAME}) nor a Hugging Face folder (no config.json). "
        "Name one of the two."
    )


def _open_run(folder: Path, checkpoint: str) -> Source:
    def read() -> dict[str, Tensor]:
        return read_masters(find_checkpoint(checkpoints_dir(folder), checkpoint))

    config = read_config(folder)
    return Source(
        model=config.model,
        tokenizer_dir=tokenizer_dir(folder),
        weights=_weights(folder, tokenizer_dir(folder), read),
        seed=config.seed,
    )


def _open_huggingface(folder: Path) -> Source:
    return Source(
        model=read_huggingface(folder, config_only=True).config,
        tokenizer_dir=folder,
        weights=_weights(folder, folder, lambda: read_huggingface(folder).state),
    )


def _weights(folder: Path, tokenizer: Path, read: Callable[[], dict[str, Tensor]]) -> InitialWeights:
    return InitialWeights(source=str(folder), tokenizer_sha256=load_tokenizer(tokenizer).sha256, read=read)
