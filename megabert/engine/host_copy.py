"""A copy from the device to the host that waits for nothing but itself."""

import torch
from torch import Tensor


class HostCopy:
    """A small tensor on its way to the host: behind what has been launched, and not behind what is launched later."""

    def __init__(self, tensor: Tensor) -> None:
        """Start the copy, into page-locked memory."""
        self._copy = tensor.to("cpu", non_blocking=True)
        self._event = torch.cuda.Event() if tensor.is_cuda else None
        if self._event is not None:
            self._event.record()

    def wait(self) -> Tensor:
        """Return the copy as soon as it is there."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy
