"""Weights of another model that a run starts from, instead of random ones (continued pre-training, fine-tuning)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from megabert.errors import CheckpointError, DataError
from megabert.models.key_maps import VOCABULARY_ROWS

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """Parameters of a trained model, under our names, read when they are needed.

    Attributes:
        source: Folder or name that they come from, for messages.
        tokenizer_sha256: SHA-256 of the tokenizer that the model was trained with.
        read: Returns float32 tensors by parameter name. Embeddings may lack the rows that pad the vocabulary.
    """

    source: str
    tokenizer_sha256: str
    read: Callable[[], dict[str, Tensor]]

    def check_tokenizer(self, tokenizer_sha256: str, folder: Path) -> None:
        """Refuse shards that another tokenizer made.

        Raises:
            DataError: The two differ; the message has both and the command that builds shards that fit.
        """
        if self.tokenizer_sha256 != tokenizer_sha256:
            raise DataError(
                f"{self.source}: its tokenizer (SHA-256 {self.tokenizer_sha256[:12]}) is not the one of the shards in "
                f"{folder} ({tokenizer_sha256[:12]}). Build them with: megabert-data build --tokenizer {self.source}",
                see="the-tokenizer-is-another",
            )


def load_initial_weights(model: nn.Module, initial: InitialWeights) -> list[str]:
    """Copy weights into a freshly initialised model; what the source lacks stays random and is logged.

    Returns:
        Sorted names of the parameters that stayed random, such as a new head.

    Raises:
        CheckpointError: A tensor has another shape, or the two have no parameter in common.
    """
    parameters = dict(model.named_parameters())
    state = initial.read()
    given = {name: tensor for name, tensor in state.items() if name in parameters}
    if not given:
        raise CheckpointError(f"{initial.source}: no parameter of this model was found there.")
    for name, tensor in given.items():
        target = parameters[name].data
        # A source may lack the rows that pad the vocabulary; ours keep their initial zeros.
        is_padded = (
            name.endswith(VOCABULARY_ROWS)
            and tensor.shape[1:] == target.shape[1:]
            and tensor.shape[0] <= target.shape[0]
        )
        if tensor.shape != target.shape and not is_padded:
            raise CheckpointError(
                f"{initial.source}: {name} has shape {tuple(tensor.shape)}, this model's has {tuple(target.shape)}. "
                "Leave the model's sizes out of recipe and flags: they come from the source."
            )
        target[: tensor.shape[0]].copy_(tensor)
    new = sorted(set(parameters) - set(given))
    unused = sorted(set(state) - set(given))
    logger.info("initial weights: %d tensors from %s", len(given), initial.source)
    for what, names in (("newly initialised, not in the source", new), ("in the source, not used", unused)):
        if names:
            logger.info("initial weights: %s: %s", what, ", ".join(names))
    return new
