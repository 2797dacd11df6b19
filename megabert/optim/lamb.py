"""LAMB (You et al. 2020, arXiv:1904.00962), exact under every ZeRO stage.

LAMB is Adam whose update of each parameter is scaled by the *trust ratio* norm(w) / norm(u), weights over update. ZeRO
hands an optimizer flat shards in which parameters begin and end anywhere, so a stock LAMB takes the norms of shards: it
runs, the loss falls, and it is a different optimizer. Here the fragment table says which elements of a flat belong to
which parameter (`base` explains the words), and the squared norms of the fragments are summed over ranks.

The cost is one all-reduce of two float64 numbers per parameter in each call of ``step``: 5 kB for the 302 parameters of
BERT-Large. At stages 1 and 2 that is once for all groups; at stage 3 DeepSpeed calls ``step`` once per sub-group (two
calls, with and without decay, unless a group exceeds ``sub_group_size``). At stage 0 every rank computes whole norms by
itself, without an all-reduce.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from megabert.ops.lamb import Coefficients, SlotFragment, lamb_passes
from megabert.optim.base import BaseOptimizer, StepSettings, no_decay
from megabert.settings.config.run import BackendOrApex, OptimizerConfig


@dataclass(frozen=True)
class Rule:
    """What sets the variants of LAMB, and StableAdamW, apart from each other."""

    corrected: Literal["moments", "step size", "nothing"]
    """Where Adam's bias correction enters, if at all."""
    adapted: Literal["all", "weights", "decayed"]
    """Which parameters get a trust ratio (the others use 1): all; all but biases and LayerNorm; or the ones with weight
    decay, which biases and LayerNorm never have."""
    ratio_limits: tuple[float, float] | None = None
    """Smallest and largest trust ratio."""
    measures_gradient: bool = False
    """Whether the first pass sums up the squares of relative gradients, not of weights (`StableAdamW`)."""


RULES = {
    "apex": Rule("moments", "decayed"),
    "nvlamb": Rule("moments", "all"),
    "paper": Rule("nothing", "weights"),
    # The limits (min_coeff, max_coeff) of DeepSpeed's BERT examples; FusedLamb by itself allows 0.01 to 10.
    "deepspeed": Rule("step size", "all", ratio_limits=(0.01, 0.3)),
}


class Lamb(BaseOptimizer):
    """LAMB over the fragments of parameters that a rank holds; at stage 0 these are whole parameters.

    For a parameter w with gradient g in step t, elementwise but for the norms, which are over the whole parameter::

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        u = (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps) + weight_decay * w
        ratio = norm(w) / norm(u)
        w = w - learning_rate * ratio * u

    The variants differ in the bias correction (the two divisions in u) and in the parameters that get a ratio:

    ========== ============================ ============================ ==========================
    variant    moments in the update        trust ratio                  biases and LayerNorm
    ========== ============================ ============================ ==========================
    apex       bias-corrected               norm(w) / norm(u)            ratio 1; so is every ratio
                                                                         without weight decay
    nvlamb     bias-corrected               norm(w) / norm(u)            adapted as well
    paper      as they are                  norm(w) / norm(u)            ratio 1
    deepspeed  as they are; the correction  clipped to [0.01, 0.3]       adapted as well
               multiplies the step size
    ========== ============================ ============================ ==========================

    The variants follow

    - apex: NVIDIA/apex, ``csrc/multi_tensor_lamb.cu`` and ``apex/optimizers/fused_lamb.py`` as they are by default,
      which is how NVIDIA/DeepLearningExamples trains BERT
    - nvlamb: the same with ``use_nvlamb=True``
    - paper: the authors' code, google-research/albert, ``lamb_optimizer.py``
    - deepspeed: deepspeedai/DeepSpeed, ``csrc/lamb/fused_lamb_cuda_kernel.cu``

    The ratio is 1 if either norm is 0. That matters for biases, which begin at 0: the first step, of the learning rate,
    gives them a norm b, and once adapted they move by no more than learning rate * b per step. So they hardly leave 0
    in a short run (docs/optimizers.md has the figures).

    The engine's ``gradient_scale`` clips, and ``step`` overwrites the gradients. It divides them by (norm + 1e-6) /
    max_grad_norm where apex divides by norm / max_grad_norm; a norm above 1 makes this 1e-6 of a gradient at most.
    """

    def __init__(
        self,
        params: Iterable[Any],
        config: OptimizerConfig,
        backend: BackendOrApex = "auto",
        *,
        rule: Rule | None = None,
    ) -> None:
        super().__init__(params, {"betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay})
        self._rule = rule or RULES[config.lamb_variant]
        self._backend = backend

    def _prepare(self) -> None:
        slots = {name: slot for slot, name in enumerate(self.shapes)}
        self._slots: dict[int, list[SlotFragment]] = {}  # by id of the flat
        for fragment in self.fragments:
            own = self._slots.setdefault(id(fragment.flat), [])
            own.append(SlotFragment(fragment.offset, fragment.numel, slots[fragment.parameter]))
        self._adapted = torch.tensor([self._adapts(name) for name in slots])
        self._ratios = torch.ones(len(slots), dtype=torch.float64)

    @property
    def trust_ratios(self) -> dict[str, float]:
        """Trust ratio of each parameter in the last step. Reading it waits for the GPU, so do it only when logging."""
        return dict(zip(self.shapes, self._ratios.tolist(), strict=True))

    @torch.no_grad()
    def step(self, settings: StepSettings) -> None:  # type: ignore[override]
        """Update the parameter groups of the optimizer: all of them, or the single group that ZeRO-3 has put there.

        Every rank must call it equally often. A rank whose flat is all padding joins the all-reduce as well.
        """
        work = [
            (flat, self._slots.get(id(flat), []), *self._constants(group, settings))
            for group in self.param_groups
            for flat in group["params"]
            if flat.grad is not None
        ]
        if not work:
            return
        # Row 0 is for weights, or for relative gradients (``measures_gradient``), row 1 for updates; a column per slot,
        # 0 if this rank holds nothing of a parameter.
        # In float64, since torch's float32 norm of millions of elements is wrong by 1e-4 on a CPU.
        device = work[0][0].device
        squares = torch.zeros(2, len(self.shapes), dtype=torch.float64, device=device)
        passes = lamb_passes(self._backend, device.type)  # two functions: of plain torch, or kernels
        # First pass: moments, then the update u, which takes the place of the gradient, and both squared norms.
        for flat, fragments, coefficients, _ in work:
            flats = (tensor.view(-1) for tensor in (flat, flat.grad, *self.moments(flat)))
            passes.compute_update(*flats, coefficients=coefficients, fragments=fragments, squares=squares)
        # Between the passes: the squares of all fragments of a parameter, on whatever rank, become one sum.
        if self.ranks is not None:
            self.ranks.sum_over_ranks(squares)
        ratios = self._trust_ratios(squares)
        if isinstance(settings.gradient_scale, Tensor):
            ratios = ratios * (settings.gradient_scale != 0)
        # Second pass: w -= step size * ratio * u.
        for flat, fragments, _, step_size in work:
            # A column per slot again; the ratios stay on the device, so that the host does not wait for them.
            scales, rounded = ratios * -step_size, self.sink.rounded_weights(flat)
            passes.apply_update(flat.view(-1), flat.grad.view(-1), fragments=fragments, scales=scales, rounded=rounded)
            self.sink.updated(flat, is_rounded=True)

    def _adapts(self, name: str) -> bool:
        """Return whether the trust ratio of a parameter is computed."""
        if self._rule.adapted == "all" or no_decay(name):
            return self._rule.adapted == "all"
        return self._rule.adapted == "weights" or self.defaults["weight_decay"] > 0

    def _constants(self, group: dict[str, Any], settings: StepSettings) -> tuple[Coefficients, float]:
        """Return the first pass's numbers for a group in this step, and the second pass's step size."""
        beta1, beta2 = group["betas"]
        # Both moments begin at 0 and are too small by these factors in step t (Kingma & Ba 2015, section 3).
        shortfall1, shortfall2 = 1.0 - beta1**settings.bias_step, 1.0 - beta2**settings.bias_step
        coefficients = Coefficients(
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            gradient_scale=settings.gradient_scale,
            exp_avg_scale=1.0 / shortfall1 if self._rule.corrected == "moments" else 1.0,
            exp_avg_sq_scale=1.0 / shortfall2 if self._rule.corrected == "moments" else 1.0,
            measures_gradient=self._rule.measures_gradient,
        )
        correction = shortfall2**0.5 / shortfall1 if self._rule.corrected == "step size" else 1.0
        return coefficients, settings.lr * correction

    def _trust_ratios(self, squares: Tensor) -> Tensor:
        ratios = self._ratios_of(squares)
        # This call may cover one group only: keep the last ratios of the others.
        present = (squares > 0).any(0)
        self._ratios = torch.where(present, ratios, self._ratios.to(ratios))
        return ratios

    def _ratios_of(self, squares: Tensor) -> Tensor:
        """Return the factor on the learning rate of each slot, from both sums of the first pass."""
        weights, update = squares.sqrt()
        ratios = weights / update  # where an update is 0 this is inf or NaN, and replaced below
        if self._rule.ratio_limits:
            ratios = ratios.clamp(*self._rule.ratio_limits)
        self._adapted = self._adapted.to(squares.device)  # moves in the first step
        adapted = (weights > 0) & (update > 0) & self._adapted
        return ratios.masked_fill(~adapted, 1.0)  # torch.where would copy the 1.0 from the host, and wait for it
