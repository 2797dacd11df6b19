"""What all optimizers here share: learning rate and bias step, moments that begin at zero, and the fragment table.

The table says where a parameter's elements are under ZeRO. A *flat* is a one-dimensional float32 tensor that the
optimizer updates: this rank's share of a parameter group, or at stage 0 a parameter itself. A *fragment* is a run of
one parameter's elements within a flat. A *slot* is a parameter's number, the same on every rank: its column in LAMB's
vectors of norms. `megabert.ops.lamb` calls a fragment with a slot in place of its name a *segment*.

    parameter            |------- embeddings -------|-- bias --|-------- dense --------|
    flat of rank 0       |-----------------------|                                          fragments: embeddings
    flat of rank 1                               |--|----------|----------|                 embeddings, bias, dense
    flat of rank 2                                                        |------------|..  dense (and padding)

The engine builds the table for every ZeRO stage; LAMB reads it for the norms of whole parameters, checkpoints for the
names of what they store.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

_NO_DECAY = re.compile(r"(^|\.)(bias|LayerNorm|layer_norm|ln)(\.|$)")


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


class BaseOptimizer(torch.optim.Optimizer):
    """An optimizer with one learning rate for all parameters. The trainer sets it and the bias step before each step.

    Neither is counted here, since a batch that was skipped does not count for the schedule either.
    """

    bias_step = 1
    """The t of Adam's bias correction, ``1 / (1 - beta**t)``, from 1."""
    bias_correction_over = "phase"
    """What ``bias_step`` counts: the steps of a ``phase``, as in NVIDIA's recipe for LAMB, or of the whole ``run``."""

    gradient_scale: float | Tensor = 1.0
    """Factor on the gradients that ``step`` finds: the engine's clipping, and the mean over ranks. A float64 scalar on
    the device where the host does not know it yet; 0 says that not all are finite, and ``step`` changes nothing."""
    rounds_weights = False
    """Whether ``step`` writes ``rounded`` itself."""
    rounded: Mapping[int, Tensor] = MappingProxyType({})
    """For a flat's id the model's 16-bit weights that its values are rounded into."""
    updated: Callable[[Tensor], None] = staticmethod(lambda flat: None)
    """Called with each flat as soon as ``step`` has updated it; the engine sends the weights from there."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as torch does.

        Torch hides this method from its compiler, and loads the compiler for that at the first call, for 1.3 CPU
        seconds. Nothing here is compiled, so the method that is hidden is called itself.
        """
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    @property
    def lr(self) -> float:
        """Learning rate of every parameter."""
        return float(self.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            group["lr"] = value

    @property
    def trust_ratios(self) -> dict[str, float]:
        """Trust ratio of each parameter in the last step; empty where an optimizer has none, or does not tell."""
        return {}

    def attach(
        self, fragments: Sequence[Fragment], names: Sequence[str], all_reduce: Callable[[Tensor], object] | None
    ) -> None:
        """Take the fragment table of this rank; only LAMB needs it.

        Args:
            fragments: What this rank holds. Its flats are the tensors that ``step`` will find in the groups.
            names: Every parameter of the model, in the same order on every rank: a parameter's index is its slot.
            all_reduce: A function that sums a float64 tensor over ranks, in place; None where every rank holds every
                parameter whole.
        """

    def moments(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(exp_avg, exp_avg_sq)`` of a flat, and create them as zeros before the first step."""
        state = self.state[flat]
        for name in ("exp_avg", "exp_avg_sq"):
            if name not in state:
                state[name] = torch.zeros_like(flat, memory_format=torch.contiguous_format)
        return state["exp_avg"], state["exp_avg_sq"]


def no_decay(name: str) -> bool:
    """Tell whether a parameter takes no weight decay: a bias, or one of LayerNorm's, as in google-research/bert."""
    return name.endswith("bias") or _NO_DECAY.search(name) is not None
