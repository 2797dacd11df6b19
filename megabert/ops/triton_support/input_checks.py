"""What Triton kernels take, said before a launch rather than by a compiler."""

import torch
from torch import Tensor

from megabert.errors import KernelError

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def require(op: str, *tensors: Tensor | None, dtypes: tuple[torch.dtype, ...] = DTYPES) -> None:
    """Refuse tensors of another dtype or of several devices; None is skipped.

    Raises:
        KernelError: With the dtype or devices found.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    for tensor in present:
        if tensor.dtype not in dtypes:
            allowed = ", ".join(str(dtype) for dtype in dtypes)
            raise KernelError(
                f"ops.{op}=triton: a tensor of {tensor.dtype} was given; its kernels take {allowed}. "
                f"Use ops.{op}=torch."
            )
    devices = {str(tensor.device) for tensor in present}
    if len(devices) > 1:
        raise KernelError(f"ops.{op}=triton: its tensors lie on {sorted(devices)}. Move them to one device.")
