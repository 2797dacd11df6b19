"""LAMB (You et al. 2020, arXiv:1904.00962), exact under every ZeRO stage.

LAMB is Adam whose update of each parameter is scaled by the *trust ratio* norm(w) / norm(u), weights over update. ZeRO
hands an optimizer flat shards in which parameters begin and end anywhere, so a stock LAMB takes the norms of shards: it
runs, the loss falls, and it is a different optimizer. Here the fragment table says which elements of a flat belong to
which parameter (`fragment` explains the words), and the squared norms of the fragments are summed over ranks.

The cost is one all-reduce of two float64 numbers per parameter in each call of ``step``: 5 kB for the 302 parameters of
BERT-Large. DeepSpeed calls ``step`` once for all groups (BF16_Optimizer), once per parameter group (stages 1 and 2: two
calls, with and without decay) or once per sub-group (stage 3: also two, unless a group exceeds ``sub_group_size``). At
stage 0 every rank computes whole norms by itself, without an all-reduce.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from megabert.ops.lamb import Coefficients, Segment, apply_update, compute_update
from megabert.optim.base import BaseOptimizer, moments_in, no_decay
from megabert.optim.fragment import Fragment

Variant = Literal["nvlamb", "paper", "deepspeed"]
AllReduce = Callable[[Tensor], None]

DEEPSPEED_RATIO_LIMITS = (0.01, 0.3)
"""Smallest and largest trust ratio in DeepSpeed's BERT examples (``min_coeff``, ``max_coeff`` of its 1-bit LAMB
tutorial). Without them FusedLamb allows up to 10."""


class Lamb(BaseOptimizer):
    """LAMB over whole parameters or, once attached to a fragment table, over ZeRO's flat shards.

    ========== ============================ ============================ =====================
    variant    moments in the update        trust ratio                  no-decay parameters
    ========== ============================ ============================ =====================
    nvlamb     bias-corrected               norm(w) / norm(u)            adapted as well
    paper      as they are                  norm(w) / norm(u)            ratio 1
    deepspeed  as they are; the correction  clipped to [0.01, 0.3]       adapted as well
               multiplies the step size
    ========== ============================ ============================ =====================

    The variants are those of

    - nvlamb: NVIDIA/apex, ``apex/optimizers/fused_lamb.py`` with ``use_nvlamb=True``
    - paper: the authors' code, google-research/albert, ``lamb_optimizer.py``: no bias correction, and what takes no
      weight decay (biases, LayerNorm) is not adapted either
    - deepspeed: deepspeedai/DeepSpeed, ``csrc/lamb/fused_lamb_cuda_kernel.cu``

    The ratio is 1 where either norm is 0. The engine clips gradients before ``step``, and ``step`` overwrites them.
    """

    bias_correction_over = "phase"
    """``bias_step`` counts the steps of a phase, as in NVIDIA's recipe."""

    def __init__(
        self,
        params: Iterable[Any],
        *,
        variant: Variant = "nvlamb",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        backend: str = "auto",
    ) -> None:
        super().__init__(params, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.variant = variant
        self.backend = backend
        self._names: list[str] = []
        self._segments: dict[int, list[Segment]] | None = None
        self._adapted: Tensor | None = None
        self._all_reduce: AllReduce | None = None
        self._ratios = torch.empty(0)

    def attach(self, fragments: Sequence[Fragment], names: Sequence[str], all_reduce: AllReduce | None) -> None:
        """Take the fragment table of this rank.

        Args:
            fragments: What this rank holds. Its flats are the tensors that ``step`` will find in the groups.
            names: Every parameter of the model, in the same order on every rank: a parameter's index is its slot.
            all_reduce: A function that sums a float64 tensor over ranks, in place; None where every rank holds every
                parameter whole.
        """
        slots = {name: slot for slot, name in enumerate(names)}
        segments: dict[int, list[Segment]] = {}
        for fragment in fragments:
            segment = Segment(fragment.offset, fragment.numel, slots[fragment.parameter])
            segments.setdefault(id(fragment.flat), []).append(segment)
        self._names, self._segments, self._all_reduce = list(names), segments, all_reduce
        self._adapted = torch.tensor([not no_decay(name) for name in names])
        self._ratios = torch.ones(len(names))

    @property
    def trust_ratios(self) -> dict[str, float]:
        """Trust ratio of each parameter in the last step. Reading it waits for the GPU, so do it only when logging."""
        return dict(zip(self._names, self._ratios.tolist(), strict=True))

    def moments(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(exp_avg, exp_avg_sq)`` of a flat; zeros before the first step."""
        return moments_in(self.state[flat], flat)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameter groups that are there: all of them, or the one that ZeRO has put there.

        Every rank must call it equally often. A rank whose flat is all padding joins the all-reduce as well.
        """
        work = [(group, flat) for group in self.param_groups for flat in group["params"] if flat.grad is not None]
        if not work:
            return
        segments = self._segments_of(work)
        device = work[0][1].device
        # Row 0 is for weights, row 1 for updates; a column per slot, 0 where this rank holds nothing of a parameter.
        # In float64, since torch's float32 norm of millions of elements is wrong by 1e-4 on a CPU.
        squares = torch.zeros(2, max(len(self._names), len(work)), dtype=torch.float64, device=device)
        # First pass: moments, then the update u, which takes the place of the gradient, and both squared norms.
        for (group, flat), parts in zip(work, segments, strict=True):
            exp_avg, exp_avg_sq = self.moments(flat)
            compute_update(
                flat.view(-1),
                flat.grad.view(-1),
                exp_avg.view(-1),
                exp_avg_sq.view(-1),
                coefficients=self._coefficients(group),
                segments=parts,
                squares=squares,
                backend=self.backend,
            )
        # Between the passes: the squares of all fragments of a parameter, on whatever rank, become one sum.
        if self._all_reduce is not None:
            self._all_reduce(squares)
        ratios = self._trust_ratios(squares, work)
        # Second pass: w -= lr * ratio * u.
        for (group, flat), parts in zip(work, segments, strict=True):
            # A column per slot again; the ratios stay on the device, so that the host does not wait for them.
            scales = ratios * -(group["lr"] * self._step_correction(group))
            apply_update(flat.view(-1), flat.grad.view(-1), segments=parts, scales=scales, backend=self.backend)

    def _segments_of(self, work: list[tuple[dict[str, Any], Tensor]]) -> list[list[Segment]]:
        if self._segments is None:  # never attached: each tensor is a whole parameter with a slot of its own
            return [[Segment(0, flat.numel(), slot)] for slot, (_, flat) in enumerate(work)]
        return [self._segments.get(id(flat), []) for _, flat in work]

    def _coefficients(self, group: dict[str, Any]) -> Coefficients:
        # Both moments begin at 0 and are too small by 1 - beta**t in step t (Kingma & Ba 2015, section 3).
        beta1, beta2 = group["betas"]
        corrected = self.variant == "nvlamb"
        return Coefficients(
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            exp_avg_scale=1.0 / (1.0 - beta1**self.bias_step) if corrected else 1.0,
            exp_avg_sq_scale=1.0 / (1.0 - beta2**self.bias_step) if corrected else 1.0,
        )

    def _step_correction(self, group: dict[str, Any]) -> float:
        """Return the factor on the learning rate by which the variant ``deepspeed`` corrects the bias."""
        if self.variant != "deepspeed":
            return 1.0
        beta1, beta2 = group["betas"]
        return float((1.0 - beta2**self.bias_step) ** 0.5 / (1.0 - beta1**self.bias_step))

    def _trust_ratios(self, squares: Tensor, work: list[tuple[dict[str, Any], Tensor]]) -> Tensor:
        weights, update = squares.sqrt()
        both = (weights > 0) & (update > 0)
        ratios = weights / update  # where an update is 0 this is inf or NaN, and replaced below
        if self.variant == "deepspeed":
            ratios = ratios.clamp(*DEEPSPEED_RATIO_LIMITS)
        if self.variant == "paper":
            both &= self._adapted_slots(work).to(both.device)
        ratios = ratios.masked_fill(~both, 1.0)  # torch.where would copy the 1.0 from the host, and wait for it
        if self._names:  # this call may cover one group only: keep the last ratios of the others
            present = (weights > 0) | (update > 0)
            self._ratios = torch.where(present, ratios, self._ratios.to(ratios))
        return ratios

    def _adapted_slots(self, work: list[tuple[dict[str, Any], Tensor]]) -> Tensor:
        """Return for each slot whether the variant ``paper`` applies a trust ratio to it."""
        if self._adapted is not None:
            return self._adapted
        return torch.tensor([not group.get("no_decay", False) for group, _ in work])
