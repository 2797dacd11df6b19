"""Making a model: its class by configuration, and the weights that it starts from, random or of another model.

Random weights are keyed by seed and parameter name. Every rank draws the same ones without communication, in whatever
order modules are made; and a parameter that two models have in common starts from the same values in both.
"""

import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from megabert.foundation.errors import CheckpointError, DataError
from megabert.models.bert import BertForPreTraining, PretrainingModel
from megabert.models.electra import ElectraForPreTraining
from megabert.models.embedding_sharing import trained_tables
from megabert.models.encoder import BertEncoder
from megabert.models.key_maps import DECODER, VOCABULARY_ROWS
from megabert.models.layers import Dense
from megabert.settings.config.families import Objective
from megabert.settings.config.model import ModelConfig

logger = logging.getLogger(__name__)

OUTPUTS = (".attention.output.weight", ".feed_forward.output.weight", ".transform.dense.weight")
"""Ends of the names of matrices whose outputs add up over layers, and of the head's. In a ModernBERT their standard
deviation is divided by sqrt(2 * layers), as in Megatron-LM (Shoeybi et al. 2019)."""


def build_model(
    config: ModelConfig, *, objective: Objective | None = None, in_fp8: bool = False, **options: Any
) -> PretrainingModel:
    """Return the family's model for pre-training, without usable weights: initialise or load them next.

    Args:
        config: Sizes and family; ``vocab_size`` is a number, not ``auto``. With ``generator_size`` it is two models.
        objective: ``nsp``, ``sop`` or ``none``; None takes the family's usual one.
        in_fp8: Whether the dense layers of all encoder layers multiply in 8 bits, but for gradients of weights.
        options: Further arguments of both classes: ``ops``, ``activation_checkpointing``, ``z_loss``.
    """
    model: PretrainingModel
    if config.generator_size is not None:
        model = ElectraForPreTraining(config, **options)
    else:
        model = BertForPreTraining(config, objective=objective or config.traits.objectives[0], **options)
    for encoder in [module for module in model.modules() if isinstance(module, BertEncoder)]:
        for layer in [module for module in encoder.layer.modules() if isinstance(module, Dense)]:
            layer.in_fp8 = in_fp8
    return model


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Fill all parameters as google-research/bert does: truncated normal weights, zero biases, LayerNorm gains of one.

    Args:
        model: Model with a ``config``, whose parameters are whole, not yet partitioned by ZeRO-3.
        seed: Seed of the run.
    """
    config = cast(ModelConfig, model.config)
    for name, parameter in model.named_parameters():
        parameter.copy_(initial_value(name, parameter.shape, seed=seed, config=config))


def initial_value(name: str, shape: torch.Size, *, seed: int, config: ModelConfig) -> Tensor:
    """Return the initial value of one parameter, float32 on the CPU.

    Args:
        name: Name of the parameter, as in ``named_parameters``.
        shape: Its shape.
        seed: Seed of the run.
        config: Gives the standard deviation (``initializer_range``, 0.02 in BERT) and the size of the vocabulary; the
            rows of word embeddings past its end are padding and zero. In a ModernBERT the deviation of ``OUTPUTS`` is
            smaller.
    """
    if name.endswith(("bias", ".difference")):
        return torch.zeros(shape)
    if name.endswith("LayerNorm.weight"):
        return torch.ones(shape)
    # The generator is seeded by a hash of seed and name; seeds are non-negative int64, so one bit is dropped.
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    deviation = config.initializer_range
    if config.traits.is_pre_norm and name.endswith(OUTPUTS):
        deviation /= (2 * config.num_hidden_layers) ** 0.5
    # A normal distribution cut at two standard deviations, as by tf.truncated_normal_initializer: uniform numbers
    # through the inverse of its distribution function. trunc_normal_ of torch 2.11 does the same; torch 2.13's
    # draws other numbers for the same seed, in five times the time.
    bound, limit = math.erf(2**0.5), 2 * deviation
    value = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    value.erfinv_().mul_(2**0.5 * deviation).clamp_(-limit, limit)
    if name.endswith("word_embeddings.weight"):
        value[config.vocab_size :] = 0
    return value


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
                f"{folder} ({tokenizer_sha256[:12]}). Build them with: megabert-data build --tokenizer {self.source} "
                "Or transfer the weights to the vocabulary of the shards: --init-vocabulary transfer",
                see="the-tokenizer-is-another",
            )


def load_initial_weights(model: nn.Module, initial: InitialWeights) -> list[str]:
    """Copy weights into a freshly initialised model; parameters that the source lacks stay random and are logged.

    Returns:
        Sorted names of the parameters that stayed random, such as a new head.

    Raises:
        CheckpointError: A tensor has another shape, the two have no parameter in common, or the model has a masked-LM
            head and the source's has a decoder of its own.
    """
    parameters = dict(model.named_parameters())
    try:
        state = trained_tables(initial.read(), parameters)
    except CheckpointError as error:
        raise CheckpointError(f"{initial.source}: {error}.") from None
    if any(name.endswith(DECODER) and name.replace("weight", "bias") in parameters for name in state):
        raise CheckpointError(
            f"{initial.source}: its masked-LM head has a decoder of its own (tie_word_embeddings: false). Here the "
            "decoder is the word embeddings, so its guesses would be others. Give a model whose decoder is tied; "
            "embed, similar, attention and finetune take this one, since they do without the head."
        )
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
