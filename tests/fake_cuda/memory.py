"""How many bytes tensors of a device hold at once."""

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

GRAIN = 512
"""Bytes that torch's allocator rounds up to."""


class Memory:
    """The storages that are alive, of those it has been shown, and their largest sum so far."""

    def __init__(self) -> None:
        self.peak = 0
        self._live = 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor's storage from now on until nobody refers to it."""
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None or known[0].expired():  # another storage may get the number of a storage that is gone
            self._forget(storage._cdata)
            size = -(-storage.nbytes() // GRAIN) * GRAIN
            self._storages[storage._cdata] = StorageWeakRef(storage), size
            self._live += size
            if self._live > self.peak:
                self._drop_what_is_gone()
                self.peak = max(self.peak, self._live)

    @property
    def live(self) -> int:
        """Bytes of the storages that are alive now."""
        self._drop_what_is_gone()
        return self._live

    def _drop_what_is_gone(self) -> None:
        for number in [number for number, (reference, _) in self._storages.items() if reference.expired()]:
            self._forget(number)

    def _forget(self, number: int) -> None:
        _, size = self._storages.pop(number, (None, 0))
        self._live -= size
