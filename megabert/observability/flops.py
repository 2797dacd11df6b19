"""Training FLOPs of the encoder and the share of a device's peak that a run reaches (MFU)."""

from megabert.config.model import ModelConfig
from megabert.observability.gpus import gpu_of_device


def training_flops(model: ModelConfig, *, tokens: int, squared_lengths: int, masked: int) -> float:
    """Return forward and backward FLOPs of some packed sequences, no recomputation, masked-only head.

    Per token: ``72*L*h^2 + 12*L*h*s + 6*(h^2 + h*V)*(masked/token)``; the feed-forward share follows
    ``intermediate_size`` (4h in BERT). Biases, normalisation and softmax are not counted.

    Args:
        model: Sizes; ``vocab_size`` must be resolved.
        tokens: Real tokens.
        squared_lengths: Sum over sequences of length squared.
        masked: Predicted positions.
    """
    layers, h, f = model.num_hidden_layers, model.hidden_size, model.intermediate_size
    assert model.vocab_size != "auto"
    dense = (24 * h * h + 12 * h * f) * layers * tokens
    attention = 12 * layers * h * squared_lengths
    return float(dense + attention + 6 * (h * h + h * model.vocab_size) * masked)


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the device's dense peak in FLOP/s, or None where it is not known (CPUs, fp32)."""
    gpu = gpu_of_device(device_name)
    peak = gpu.peak_tflops.get(precision) if gpu is not None else None
    return None if peak is None else peak * 1e12
