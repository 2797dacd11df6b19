"""Training FLOPs of the encoder, and the table of GPUs: peaks for MFU, sizes and speeds for ``megabert estimate``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from megabert.foundation.errors import ConfigError
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.names import did_you_mean
from megabert.settings.config.run import Precision
from megabert.settings.config.yaml_text import own_yaml


def training_flops(
    model: ModelConfig, *, tokens: int, squared_lengths: int, masked: int, local_pairs: int | None = None
) -> float:
    """Return the FLOPs of the forward and the backward pass over packed sequences.

    BERT takes, per token, ``72*L*h^2 + 12*L*h*s + 6*(h*h + h*V)*(masked/token)``: 6 FLOPs per weight and token (2 in
    the forward, 4 in the backward pass) for the ``12*h^2`` weights of a layer and for the head, which sees masked
    positions only, and ``12*h*s`` per layer for the two products of attention. Recomputation, biases, normalisation and
    softmax do not count, so that MFU compares between settings and with other codes. For the same reason all tokens of
    the last layer count, though pre-training computes it after attention only at the positions that are read: of
    BERT-Large's 24 layers that is half a layer, about 2%.

    The other families differ so:

    - The feed-forward's share follows ``intermediate_size``, which is 4h in BERT.
    - ALBERT and ELECTRA have embeddings of width e, and a projection to h.
    - ELECTRA and DeBERTa 3 are a generator, a discriminator and the discriminator's head; that a discriminator may be a
      masked LM in some phases does not count.
    - DeBERTa has ``6*L*h*s`` more for each kind of position scores: one product per pair of tokens. That the scores of
      all distances are computed does not count, nor does projecting the positions, once per micro-batch. Its
      convolution counts.
    - ModernBERT has a third matrix in the feed-forward, ``18*h*f`` for a layer's three; in layers with local attention
      only pairs of tokens that see each other count.

    Args:
        model: The model's sizes; ``vocab_size`` must be a number.
        tokens: Real tokens, without padding.
        squared_lengths: Sum of squared sequence lengths.
        masked: Predicted positions.
        local_pairs: Pairs of a query and a key that local attention computes (``local_pairs``); a model without local
            layers needs none.
    """
    assert model.vocab_size != "auto"
    h, e = model.hidden_size, model.embedding_width
    if model.generator_size is not None:
        generator = training_flops(model.generator(), tokens=tokens, squared_lengths=squared_lengths, masked=masked)
        return generator + _encoder_flops(model, tokens, squared_lengths, 0) + 6.0 * (h * h + h) * tokens
    local = squared_lengths if local_pairs is None else local_pairs
    return _encoder_flops(model, tokens, squared_lengths, local) + 6.0 * (h * e + e * model.vocab_size) * masked


def local_pairs(model: ModelConfig, lengths: ArrayLike) -> int:
    """Return the number of query-key pairs that a layer with local attention computes.

    Args:
        model: Gives the window.
        lengths: Lengths of the sequences, or of one mean sequence; 0 is a sequence of padding.
    """
    if not model.local_layers:
        return 0
    # Each of n tokens sees itself and r to either side, but for r * (r + 1) that would be beyond the two ends.
    present = np.asarray(lengths, np.float64)
    present = present[present >= 1]
    reaches = np.minimum(present - 1, model.reach)
    return round(float((present * (2 * reaches + 1) - reaches * (reaches + 1)).sum()))


def fp8_work(model: ModelConfig, *, tokens: int) -> tuple[float, float]:
    """Return the FLOPs that ``precision: fp8`` multiplies in 8 bits, and the bytes that its casts read and write.

    Two thirds of the products with the layers' weights: outputs and gradients of inputs. Each of a product's values is
    cast, which writes a byte. LayerNorm and GELU have them at hand; a cast of attention's results and of the gradients
    of queries, keys and values reads their 16 bits as well. Casts of weights, once per step, do not count.

    Args:
        model: The model's sizes.
        tokens: Real tokens, without padding.
    """
    h, f = model.hidden_size, model.intermediate_size
    gates = 2 if model.traits.is_pre_norm else 1  # GeGLU has two inputs of the inner width
    flops = 2 * _matrix_flops(model) * tokens / 3
    cast_bytes = float((16 * h + (1 + gates) * f) * model.layer_passes * tokens)
    if model.generator_size is None:
        return flops, cast_bytes
    more_flops, more_bytes = fp8_work(model.generator(), tokens=tokens)
    return flops + more_flops, cast_bytes + more_bytes


def _matrix_flops(model: ModelConfig) -> int:
    """Return the FLOPs per token of products with the weights of all layers, 6 per weight."""
    h, f = model.hidden_size, model.intermediate_size
    matrices = 3 if model.traits.is_pre_norm else 2  # of the feed-forward
    return (24 * h * h + 6 * matrices * h * f) * model.layer_passes


def _encoder_flops(model: ModelConfig, tokens: int, squared_lengths: int, local: int) -> float:
    """Return the FLOPs of all layers and the embedding projection, as `training_flops` counts them."""
    layers, h = model.layer_passes, model.hidden_size
    projection = 6 * h * model.embedding_width if model.projects_embeddings else 0
    projection += 6 * h * h * (model.conv_kernel_size or 0)
    per_pair = 12 * h + 6 * h * len(model.pos_att_type)
    pairs = (layers - model.local_layers) * squared_lengths + model.local_layers * local
    return float((_matrix_flops(model) + projection) * tokens + per_pair * pairs)


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the device's peak of dense products in FLOP/s, or None if it is not known (CPUs, fp32)."""
    gpu = gpu_of_device(device_name)
    peak = gpu.peak_tflops.get(precision) if gpu is not None else None
    return None if peak is None else peak * 1e12


@dataclass(frozen=True)
class Gpu:
    """A GPU and the server that it is usually built into."""

    name: str
    """Its name in the table."""
    words: str
    """Words that all occur in the name by which the device calls itself."""
    precisions: Sequence[Precision]
    """Precisions that the peak is of, the one to train in first. fp8 counts as 16 bits, in which the rest is."""
    tflops: float
    """Peak of dense matrix products (without sparsity) in each of them."""
    memory_gib: float
    """Memory as CUDA reports it, for instance when torch runs out of it. Datasheets round it up."""
    memory_gb_s: float
    """Speed of its memory."""
    link_gb_s: float
    """Speed to the other GPUs of its node in one direction: NVLink, otherwise PCIe."""
    network_gb_s: float
    """Its share of the node's network in one direction."""
    gpus_per_node: int

    @property
    def peak_tflops(self) -> dict[str, float]:
        """Peak of dense matrix products by precision."""
        return dict.fromkeys(self.precisions, self.tflops)

    @property
    def best_precision(self) -> Precision:
        """The precision to train in: bf16 if the GPU has it, otherwise fp16."""
        return self.precisions[0]


GPUS = {name: Gpu(name, **row) for name, row in own_yaml(__file__, "gpus.yaml").items()}
"""GPUs by the name that ``megabert estimate --gpu`` takes."""


def gpu_by_name(name: str) -> Gpu:
    """Return a GPU of the table.

    Raises:
        ConfigError: The table does not have this GPU.
    """
    if name.lower() not in GPUS:
        raise ConfigError(f"--gpu {name}: not in the table of datasheets{did_you_mean(name.lower(), list(GPUS))}")
    return GPUS[name.lower()]


def require_peak(precision: Precision, gpu: Gpu) -> None:
    """Refuse a precision that the table has no figures of.

    Raises:
        ConfigError: The GPU does not have it, or it is fp32.
    """
    if precision not in gpu.peak_tflops:
        known = ", ".join(gpu.peak_tflops)
        raise ConfigError(
            f"precision={precision}: the datasheet figures of {gpu.name} are for {known}. Use {gpu.best_precision}."
        )


def gpu_of_device(device_name: str) -> Gpu | None:
    """Return the GPU that calls itself so, or None. Of several the one with the longest name: "A100 40GB"."""
    # Whole words: an RTX A1000 is no A100, and a GH200 no H200.
    words = set(re.split("[^A-Za-z0-9]+", device_name))
    fitting = [gpu for gpu in GPUS.values() if words.issuperset(gpu.words.split())]
    return max(fitting, key=lambda gpu: len(gpu.words), default=None)
