"""Checks of the inputs of Triton kernels, so that a wrong dtype is an error of ours and not of the compiler."""

import torch
from torch import Tensor

from megabert.foundation.errors import KernelError

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST_HEAD = 128
"""Greatest width of a head that the kernels of attention hold in registers."""


def require(op: str, *tensors: Tensor | None, dtypes: tuple[torch.dtype, ...] = DTYPES) -> None:
    """Refuse tensors of other dtypes or on several devices.

    Args:
        op: Name of the op, for the message.
        tensors: The op's inputs; None is skipped.
        dtypes: Dtypes that the kernels take.

    Raises:
        KernelError: A tensor has another dtype, or the tensors are on several devices.
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
        raise KernelError(f"ops.{op}=triton: its tensors are on {sorted(devices)}. Move them to one device.")


def require_heads(qkv_TC: Tensor, num_heads: int) -> None:
    """Refuse inputs that the kernels of attention do not take.

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D).
        num_heads: Heads that D is divided into.

    Raises:
        KernelError: The dtype is another one, or the heads are too wide.
    """
    require("attention", qkv_TC)
    head_width = qkv_TC.shape[1] // (3 * num_heads)
    if head_width > WIDEST_HEAD:
        raise KernelError(
            f"ops.attention=triton: heads are {head_width} wide; its kernels take up to {WIDEST_HEAD}. "
            "Use ops.attention=torch or more heads."
        )
