"""The words for where a parameter's elements are under ZeRO, and the entry of the table that says it.

A *flat* is a one-dimensional float32 tensor that the optimizer updates: this rank's share of a parameter group, or at
stage 0 a parameter itself. A *fragment* is a run of one parameter's elements within a flat. A *slot* is a parameter's
number, the same on every rank: its column in LAMB's vectors of norms. `megabert.ops.lamb` calls a fragment with a slot
in place of its name a *segment*.

    parameter            |------- embeddings -------|-- bias --|-------- dense --------|
    flat of rank 0       |-----------------------|                                          fragments: embeddings
    flat of rank 1                               |--|----------|----------|                 embeddings, bias, dense
    flat of rank 2                                                        |------------|..  dense (and padding)

The engine builds the table for every ZeRO stage; LAMB reads it for the norms of whole parameters, checkpoints for the
names of what they store.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Fragment:
    """Elements ``start`` to ``start + numel`` of ``parameter``, which begin at ``offset`` in ``flat``."""

    flat: Tensor
    """The float32 masters that the optimizer updates on this rank."""
    offset: int
    """First element within ``flat``, which is read as one dimension."""
    parameter: str
    """Name of the parameter in the model."""
    start: int
    """First element within the parameter, which is read as one dimension."""
    numel: int
    """Number of elements. Padding is never part of a fragment."""

    def view(self, tensor: Tensor | None = None) -> Tensor:
        """Return this fragment's elements of ``flat``, or of a tensor with the same layout: a moment, a gradient."""
        source = self.flat if tensor is None else tensor
        return source.detach().view(-1).narrow(0, self.offset, self.numel)
