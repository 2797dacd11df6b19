"""Random initial weights, keyed by seed and parameter name.

Every rank draws the same weights without communication, in whatever order modules are made; and a parameter that two
models have in common starts from the same values in both.
"""

import hashlib
from typing import cast

import torch
from torch import Tensor, nn

from megabert.config.model import ModelConfig


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
            rows of word embeddings behind it are padding and zero.
    """
    if name.endswith("bias"):
        return torch.zeros(shape)
    if name.endswith("LayerNorm.weight"):
        return torch.ones(shape)
    # The generator is seeded by a hash of seed and name; seeds are non-negative int64, so one bit is dropped.
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    # Cut at two standard deviations, as tf.truncated_normal_initializer does.
    deviation = config.initializer_range
    value = torch.empty(shape)
    nn.init.trunc_normal_(value, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
    if name.endswith("word_embeddings.weight"):
        value[config.vocab_size :] = 0
    return value
