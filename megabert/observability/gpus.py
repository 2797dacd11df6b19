"""The table of GPUs, from their datasheets: peaks for MFU, sizes and speeds for ``megabert estimate``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from megabert.config.loading import nearest
from megabert.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU and the server that it is usually built into."""

    words: str
    """Words that all occur in the name by which the device calls itself."""
    peak_tflops: Mapping[str, float]
    """Peak of dense matrix products (without sparsity) by precision."""
    memory_gib: float
    """Memory as CUDA reports it, for instance when torch runs out of it. Datasheets round it up."""
    memory_gb_s: float
    """Speed of its memory."""
    link_gb_s: float
    """Speed to the other GPUs of its node in one direction: NVLink, otherwise PCIe."""
    network_gb_s: float
    """Its share of the node's network in one direction."""
    gpus_per_node: int = 8
    source: str = field(repr=False)
    """NVIDIA's datasheets: that of the GPU, and for the network that of the DGX server."""

    @property
    def best_precision(self) -> Literal["bf16", "fp16"]:
        """The precision to train in: bf16 where the GPU has it, otherwise fp16."""
        return "bf16" if "bf16" in self.peak_tflops else "fp16"


def _both(tflops: float) -> Mapping[str, float]:
    return MappingProxyType({"bf16": tflops, "fp16": tflops})


GPUS: dict[str, Gpu] = {
    "h200": Gpu(
        words="H200",
        peak_tflops=_both(989.0),
        memory_gib=139.8,
        memory_gb_s=4800.0,
        link_gb_s=450.0,
        network_gb_s=50.0,
        source="H200 SXM; DGX H200: 8 x 400 Gb/s",
    ),
    "h100": Gpu(
        words="H100",
        peak_tflops=_both(989.0),
        memory_gib=79.1,
        memory_gb_s=3350.0,
        link_gb_s=450.0,
        network_gb_s=50.0,
        source="H100 SXM; DGX H100: 8 x 400 Gb/s",
    ),
    "h100-pcie": Gpu(
        words="H100 PCIe",
        peak_tflops=_both(756.0),
        memory_gib=79.1,
        memory_gb_s=2000.0,
        link_gb_s=64.0,
        network_gb_s=25.0,
        source="H100 PCIe: PCIe 5.0 x16; network: 200 Gb/s a GPU assumed",
    ),
    "a100": Gpu(
        words="A100",
        peak_tflops=_both(312.0),
        memory_gib=79.1,
        memory_gb_s=2039.0,
        link_gb_s=300.0,
        network_gb_s=25.0,
        source="A100 80GB SXM; DGX A100: 8 x 200 Gb/s",
    ),
    "a100-40gb": Gpu(
        words="A100 40GB",
        peak_tflops=_both(312.0),
        memory_gib=39.4,
        memory_gb_s=1555.0,
        link_gb_s=300.0,
        network_gb_s=25.0,
        source="A100 40GB SXM; DGX A100: 8 x 200 Gb/s",
    ),
    "l40s": Gpu(
        words="L40S",
        peak_tflops=_both(362.0),
        memory_gib=44.4,
        memory_gb_s=864.0,
        link_gb_s=32.0,
        network_gb_s=12.5,
        source="L40S: PCIe 4.0 x16; network: 100 Gb/s a GPU assumed",
    ),
    "v100": Gpu(
        words="V100",
        peak_tflops=MappingProxyType({"fp16": 125.0}),
        memory_gib=31.7,
        memory_gb_s=900.0,
        link_gb_s=150.0,
        network_gb_s=6.25,
        gpus_per_node=16,
        source="V100 SXM 32 GB; DGX-2: 16 GPUs, 8 x 100 Gb/s",
    ),
}
"""GPUs by the name that ``megabert estimate --gpu`` takes."""


def gpu_by_name(name: str) -> Gpu:
    """Return a GPU of the table.

    Raises:
        ConfigError: The table does not have this GPU.
    """
    if name.lower() not in GPUS:
        raise ConfigError(f"--gpu {name}: not in the table of datasheets{nearest(name.lower(), list(GPUS))}")
    return GPUS[name.lower()]


def gpu_of_device(device_name: str) -> Gpu | None:
    """Return the GPU that calls itself so, or None. Of several the one with the longest name: "A100 40GB"."""
    fitting = [gpu for gpu in GPUS.values() if all(word in device_name for word in gpu.words.split())]
    return max(fitting, key=lambda gpu: len(gpu.words), default=None)
