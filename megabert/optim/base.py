"""What all optimizers here share: the numbers of a step, moments that begin at zero, and the fragment table.

The table says where a parameter's elements are under ZeRO. A *flat* is a one-dimensional float32 tensor that the
optimizer updates: this rank's share of a parameter group, or at stage 0 a parameter itself. A *fragment* is a run of
one parameter's elements within a flat. A *slot* is a parameter's number, the same on every rank: its column in the
vectors of sums that ranks add up.

    parameter            |------- embeddings -------|-- bias --|-------- dense --------|
    flat of rank 0       |-----------------------|                                          fragments: embeddings
    flat of rank 1                               |--|----------|----------|                 embeddings, bias, dense
    flat of rank 2                                                        |------------|..  dense (and padding)

The engine builds the table for every ZeRO stage; LAMB and StableAdamW read it for sums over whole parameters, Muon to
put matrices together, checkpoints to name their tensors.
"""

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from megabert.settings.config.run import MOMENTS, OptimizerConfig

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


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """The numbers of one update. The optimizer counts none of them: a skipped batch does not advance the schedule."""

    lr: float
    """Learning rate of every parameter."""
    bias_step: int = 1
    """The t of Adam's bias correction, ``1 / (1 - beta**t)``, from 1."""
    gradient_scale: float | Tensor = 1.0
    """Factor on the gradients: the engine's clipping, and the mean over ranks. A float64 scalar on the device if the
    host does not know it yet; 0 says that not all gradients are finite, and ``step`` changes nothing."""


class Ranks(Protocol):
    """This rank and the others, as an optimizer needs them; `World` is one."""

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def device(self) -> torch.device:
        """Device of this rank's tensors."""

    def gather(self, value: Any) -> Sequence[Any]:
        """Return the value of each rank."""

    def sum_over_ranks(self, values: Tensor) -> object:
        """Sum a small tensor over the ranks, in place."""

    def exchange(self, outgoing: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send each rank its part of a flat tensor, and return the parts that all ranks have sent here."""


class UpdateSink:
    """Receives each flat as soon as ``step`` has updated it. This one does nothing: the masters are the weights."""

    def rounded_weights(self, flat: Tensor) -> Tensor | None:
        """Return the weights that a flat is copied into, rounded if they have 16 bits; None if there are none."""
        return None

    def updated(self, flat: Tensor, *, is_rounded: bool = False) -> None:
        """Take an updated flat. ``is_rounded``: the optimizer has filled ``rounded_weights`` itself."""


class BaseOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer with one learning rate for all parameters, which it gets with each step."""

    state_names: tuple[str, ...] = MOMENTS
    """Tensors that it keeps for each flat, with the flat's layout; checkpoints store them under these names."""
    bias_correction_over: Literal["phase", "run"] = "phase"
    """What ``bias_step`` counts: the steps of a phase, as in NVIDIA's recipe for LAMB, or of the whole run."""
    sink = UpdateSink()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as torch does.

        Torch hides this method from its compiler, and loads the compiler for that at the first call, for 1.3 CPU
        seconds. Nothing here is compiled, so the method that is hidden is called itself.
        """
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    @property
    def trust_ratios(self) -> dict[str, float]:
        """Trust ratio of each parameter in the last step; empty if the optimizer has none, or does not report them."""
        return {}

    def attach(
        self,
        fragments: Sequence[Fragment],
        shapes: Mapping[str, torch.Size],
        ranks: Ranks | None,
        sink: UpdateSink | None = None,
    ) -> None:
        """Take the fragment table, for optimizers that look at whole parameters, and the receiver of updated flats.

        Args:
            fragments: This rank's fragments. Their flats are the tensors that ``step`` will find in the groups.
            shapes: Whole shape of every parameter of the model, in the same order on every rank: a parameter's index is
                its slot.
            ranks: This rank and the others; None if every rank holds every parameter whole.
            sink: Is called with each updated flat.
        """
        self.fragments, self.shapes, self.ranks, self.sink = fragments, shapes, ranks, sink or self.sink
        self._prepare()

    def _prepare(self) -> None:
        """Work out what ``step`` needs of the fragment table, once the optimizer has it."""

    @abstractmethod
    def step(self, settings: StepSettings) -> None:  # type: ignore[override]
        """Update the parameter groups of the optimizer: all of them, or the single group that ZeRO-3 has put there."""

    def moments(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of ``state_names`` for a flat, or the first ones; before the first step they are zeros."""
        return self._moments(flat, self.state_names)

    def _moments(self, flat: Tensor, names: Sequence[str]) -> tuple[Tensor, ...]:
        state = self.state[flat]
        for name in names:
            if name not in state:
                state[name] = torch.zeros_like(flat, memory_format=torch.contiguous_format)
        return tuple(state[name] for name in names)


class OptimizerOptions(ABC):
    """The entry point of a package's optimizer: a dataclass whose fields are its options."""

    @abstractmethod
    def build(self, groups: list[dict[str, Any]], config: OptimizerConfig) -> BaseOptimizer:
        """Return the optimizer.

        Args:
            groups: Parameter groups as torch has them, with ``params`` and ``weight_decay``.
            config: The section ``optimizer`` of the run, with betas and eps.
        """


def no_decay(name: str) -> bool:
    """Return whether a parameter takes no weight decay: a bias, or one of LayerNorm's, as in google-research/bert."""
    return name.endswith("bias") or _NO_DECAY.search(name) is not None
