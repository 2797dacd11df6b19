"""Training FLOPs of the encoder and the share of a device's peak that a run reaches (MFU)."""

from megabert.config.model import ModelConfig
from megabert.observability.gpus import gpu_of_device


def training_flops(model: ModelConfig, *, tokens: int, squared_lengths: int, masked: int) -> float:
    """Return forward and backward FLOPs of some packed sequences, no recomputation, masked-only head.

    Per token: ``72*L*h^2 + 12*L*h*s + 6*(h*e + e*V)*(masked/token)``; the feed-forward share follows
    ``intermediate_size`` (4h in BERT) and the embedding width e is h but for ALBERT and ELECTRA, which add their
    projection. Biases, normalisation and softmax are not counted. ELECTRA: generator, discriminator and its head.
    DeBERTa: ``6*L*h*s`` more for each kind of position scores, which is one product a pair of tokens; that more are
    computed, of all distances, does not count, nor does the projection of positions, once a micro-batch. Its
    convolution, where there is one, counts.

    Args:
        model: Sizes; ``vocab_size`` must be resolved.
        tokens: Real tokens.
        squared_lengths: Sum over sequences of length squared.
        masked: Predicted positions.
    """
    assert model.vocab_size != "auto"
    h, e = model.hidden_size, model.embedding_width
    if model.generator_size is not None:
        generator = training_flops(model.generator(), tokens=tokens, squared_lengths=squared_lengths, masked=masked)
        return generator + _encoder_flops(model, tokens, squared_lengths) + 6.0 * (h * h + h) * tokens
    return _encoder_flops(model, tokens, squared_lengths) + 6.0 * (h * e + e * model.vocab_size) * masked


def _encoder_flops(model: ModelConfig, tokens: int, squared_lengths: int) -> float:
    layers, h, f = model.num_hidden_layers, model.hidden_size, model.intermediate_size
    projection = 6 * h * model.embedding_width if model.projects_embeddings else 0
    projection += 6 * h * h * (model.conv_kernel_size or 0)
    per_pair = 12 * h + 6 * h * len(model.pos_att_type)
    return float(((24 * h * h + 12 * h * f) * layers + projection) * tokens + per_pair * layers * squared_lengths)


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the device's dense peak in FLOP/s, or None where it is not known (CPUs, fp32)."""
    gpu = gpu_of_device(device_name)
    peak = gpu.peak_tflops.get(precision) if gpu is not None else None
    return None if peak is None else peak * 1e12
