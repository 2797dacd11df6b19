"""Which number format a device trains in."""

import torch

from megabert.config.run import Precision

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Return what ``auto`` means on a device: bf16 on a GPU that has it, else fp16 on a GPU, fp32 on a CPU."""
    if precision != "auto":
        return precision
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
