"""Training FLOPs of the encoder and the share of a device's peak that a run reaches (MFU)."""

import numpy as np
from numpy.typing import ArrayLike

from megabert.observability.gpus import gpu_of_device
from megabert.settings.config.model import ModelConfig


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


def _encoder_flops(model: ModelConfig, tokens: int, squared_lengths: int, local: int) -> float:
    """Return the FLOPs of all layers and the embedding projection, as `training_flops` counts them."""
    layers, h, f = model.layer_passes, model.hidden_size, model.intermediate_size
    projection = 6 * h * model.embedding_width if model.projects_embeddings else 0
    projection += 6 * h * h * (model.conv_kernel_size or 0)
    per_pair = 12 * h + 6 * h * len(model.pos_att_type)
    matrices = 3 if model.traits.is_pre_norm else 2  # of the feed-forward
    pairs = (layers - model.local_layers) * squared_lengths + model.local_layers * local
    return float(((24 * h * h + 6 * matrices * h * f) * layers + projection) * tokens + per_pair * pairs)


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the device's peak of dense products in FLOP/s, or None if it is not known (CPUs, fp32)."""
    gpu = gpu_of_device(device_name)
    peak = gpu.peak_tflops.get(precision) if gpu is not None else None
    return None if peak is None else peak * 1e12
