"""Initial weights, keyed by (seed, parameter name): equal on every rank and whatever the order of construction."""

import hashlib
from typing import cast

import torch
from torch import Tensor, nn

from megabert.config.model import ModelConfig


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Fill all parameters: truncated normal weights, zero biases, LayerNorm gains of one (Devlin et al. 2019).

    Args:
        model: A model with a ``config``; its parameters are whole (not yet partitioned by ZeRO-3).
        seed: Of the run.
    """
    config = cast(ModelConfig, model.config)
    for name, parameter in model.named_parameters():
        parameter.copy_(initial_value(name, parameter.shape, seed=seed, config=config))


def initial_value(name: str, shape: torch.Size, *, seed: int, config: ModelConfig) -> Tensor:
    """Return the initial value of one parameter, float32 on the CPU.

    Args:
        name: As in ``named_parameters``.
        shape: Of the parameter.
        seed: Of the run.
        config: For ``initializer_range`` and the vocabulary's padding, whose rows are zero.
    """
    if name.endswith("bias"):
        return torch.zeros(shape)
    if name.endswith("LayerNorm.weight"):
        return torch.ones(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    deviation = config.initializer_range
    value = torch.empty(shape)
    nn.init.trunc_normal_(value, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
    if name.endswith("word_embeddings.weight"):
        value[config.vocab_size :] = 0
    return value
