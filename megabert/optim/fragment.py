"""The fragment table: which piece of which parameter lies where in a flat tensor.

Built in ``megabert.distributed`` for every ZeRO stage, read by LAMB (per-parameter norms) and by checkpoints.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Fragment:
    """``numel`` elements of ``parameter`` from ``start`` on lie in ``flat`` from ``offset`` on."""

    flat: Tensor
    """The float32 master tensor that the optimizer updates on this rank."""
    offset: int
    """First element within ``flat``, read as one dimension."""
    parameter: str
    """Name of the parameter in the model."""
    start: int
    """First element within the parameter, read as one dimension."""
    numel: int
    """Valid elements; padding is never part of a fragment."""

    def view(self, tensor: Tensor | None = None) -> Tensor:
        """Return this fragment's elements of ``flat``, or of a tensor laid out like it (a moment, a gradient)."""
        source = self.flat if tensor is None else tensor
        return source.detach().view(-1).narrow(0, self.offset, self.numel)
