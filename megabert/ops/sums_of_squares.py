"""Sums of squares in float64: torch's float32 norm of four million elements is wrong by 1.6e-4 on a CPU."""

import torch
from torch import Tensor

_CHUNK = 1 << 16  # elements: half a MiB in float64, so that a chunk stays in a CPU's cache


def sums_of_squares(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Return the float64 sum of squares of each one-dimensional tensor."""
    if not tensors:
        return torch.zeros(0, dtype=torch.float64, device=device)
    if device.type != "cpu":
        return torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float64)).square()
    return torch.stack([_sum_of_squares(tensor) for tensor in tensors])


def _sum_of_squares(values: Tensor) -> Tensor:
    """Add up chunk by chunk, so that no float64 copy of the whole tensor is made."""
    total = torch.zeros((), dtype=torch.float64)
    for chunk in values.split(_CHUNK):
        wide = chunk.double()
        total += torch.dot(wide, wide)
    return total
