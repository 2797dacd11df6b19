"""The table of GPUs, from their datasheets: peaks for MFU, sizes and speeds for ``megabert estimate``."""

import re
from dataclasses import dataclass

from megabert.foundation.errors import ConfigError
from megabert.settings.config.names import did_you_mean
from megabert.settings.config.run import Precision


@dataclass(frozen=True)
class Gpu:
    """A GPU and the server that it is usually built into."""

    name: str
    """Its name in the table."""
    words: str
    """Words that all occur in the name by which the device calls itself."""
    precisions: tuple[Precision, ...]
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


_BOTH: tuple[Precision, ...] = ("bf16", "fp16")
_WITH_FP8: tuple[Precision, ...] = (*_BOTH, "fp8")

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        # From NVIDIA's datasheets of the GPUs, and of the DGX servers for the share of the network.
        # H200 SXM; DGX H200: 8 x 400 Gb/s
        Gpu("h200", "H200", _WITH_FP8, 989.0, 139.8, 4800.0, 450.0, 50.0, 8),
        # H100 SXM; DGX H100: 8 x 400 Gb/s
        Gpu("h100", "H100", _WITH_FP8, 989.0, 79.1, 3350.0, 450.0, 50.0, 8),
        # H100 PCIe: PCIe 5.0 x16; network: 200 Gb/s per GPU assumed
        Gpu("h100-pcie", "H100 PCIe", _WITH_FP8, 756.0, 79.1, 2000.0, 64.0, 25.0, 8),
        # A100 80GB SXM; DGX A100: 8 x 200 Gb/s
        Gpu("a100", "A100", _BOTH, 312.0, 79.1, 2039.0, 300.0, 25.0, 8),
        # A100 40GB SXM; DGX A100: 8 x 200 Gb/s
        Gpu("a100-40gb", "A100 40GB", _BOTH, 312.0, 39.4, 1555.0, 300.0, 25.0, 8),
        # L40S: PCIe 4.0 x16; network: 100 Gb/s per GPU assumed
        Gpu("l40s", "L40S", _WITH_FP8, 362.0, 44.4, 864.0, 32.0, 12.5, 8),
        # V100 SXM 32 GB; DGX-2: 16 GPUs, 8 x 100 Gb/s
        Gpu("v100", "V100", ("fp16",), 125.0, 31.7, 900.0, 150.0, 6.25, 16),
    )
}
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
