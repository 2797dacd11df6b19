"""AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101): torch's, with the interface of `Lamb`; and StableAdamW.

StableAdamW (Wortsman et al. 2023, arXiv:2304.13013) shortens the step of a parameter by surprise. A gradient far above
its running root mean square makes Adam's update too long: the second moment has not followed yet. Adafactor's update
clipping (Shazeer & Stern 2018, arXiv:1804.04235) measures that for each parameter and divides the learning rate by it.
It takes the place of clipping by the global norm, which shortens all parameters for the surprise of one.
"""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from megabert.optim.base import BaseOptimizer, StepSettings
from megabert.optim.lamb import Lamb, Rule
from megabert.settings.config.run import BackendOrApex, OptimizerConfig

_STEP = inspect.unwrap(torch.optim.AdamW.step)
"""torch's update without its decorator, which imports the compiler and switches gradients off, as `AdamW.step` does."""


class AdamW(BaseOptimizer, torch.optim.AdamW):
    """torch's AdamW. It works element by element, so it is exact on any shard and needs no fragment table."""

    bias_correction_over = "run"  # the moments are kept from phase to phase, and so is their age

    def __init__(self, params: Iterable[Any], config: OptimizerConfig, backend: str = "auto") -> None:
        """Bind the constants. ``backend`` chooses among the implementations of LAMB and has no effect here."""
        constants: dict[str, Any] = {name: getattr(config, name) for name in ("betas", "eps", "weight_decay")}
        super().__init__(params, lr=0.0, **constants, fused=True)  # only fused reads grad_scale and found_inf

    def step(self, settings: StepSettings) -> None:  # type: ignore[override]
        """Update the parameter groups that are there."""
        self._step_groups(self.param_groups, settings)

    @torch.no_grad()
    def _step_groups(self, groups: list[dict[str, Any]], settings: StepSettings) -> None:
        scale = torch.as_tensor(settings.gradient_scale, dtype=torch.float64)
        # torch's kernel divides gradients by grad_scale while it reads them, and does nothing if found_inf is 1.
        self.grad_scale, self.found_inf = scale.reciprocal().float(), (scale == 0).float()
        for group in groups:
            group["lr"] = settings.lr
            for flat in group["params"]:
                self.moments(flat)  # made before the first step; torch reads them from the state
                # torch adds one to the step; full() fills it on the device, without waiting for it.
                self.state[flat]["step"] = torch.full((), settings.bias_step - 1.0, device=flat.device)
        kept = self.param_groups
        try:
            for group in groups:  # one by one: the weights of a group are sent while the next one is updated
                self.param_groups = [group]
                _STEP(self)
                for flat in group["params"]:
                    self.sink.updated(flat)
        finally:
            self.param_groups = kept


class StableAdamW(Lamb):
    """LAMB's two passes with another factor on the learning rate: the mean of whole parameters replaces the norms.

    For a parameter w with gradient g in step t, elementwise but for the mean, which is over the whole parameter::

        m = beta1 * m + (1 - beta1) * g,  m_hat = m / (1 - beta1**t)
        v = beta2 * v + (1 - beta2) * g**2,  v_hat = v / (1 - beta2**t)
        RMS = sqrt(mean(g**2 / max(v_hat, eps**2)))
        lr_t = learning_rate / max(1, RMS)
        w = w - lr_t * (m_hat / (sqrt(v_hat) + eps) + weight_decay * w)

    The published codes differ, and these are the choices:

    - The weight decay is multiplied by the shortened rate, as in optimi (``optimi/stableadamw.py``) and in the authors'
      own copy for ModernBERT (AnswerDotAI/ModernBERT, ``src/optimizer.py``), which their configurations use. The code
      that circulates with the paper ("StableAdamW-v1") decays by the rate as it is.
    - ``v_hat`` has taken in the present gradient before RMS is computed, and ``eps`` is in both places, in all three.
    - The three correct the bias within the decay rates, beta * (1 - beta**(t - 1)) / (1 - beta**t), as Adafactor does.
      That is the same ``m_hat`` and ``v_hat`` in exact arithmetic. Here ``m`` and ``v`` are stored, as by AdamW.
    - ``weight_decay`` is multiplied by the learning rate. ModernBERT's ``decoupled_stableadamw`` is not: its decay per
      step is ``weight_decay * lr_t / max_lr``, so divide its ``weight_decay`` by its peak rate.
    - The age of the moments is counted over the run, as by AdamW.
    """

    bias_correction_over = "run"

    def __init__(self, params: Iterable[Any], config: OptimizerConfig, backend: BackendOrApex = "auto") -> None:
        super().__init__(params, config, backend, rule=Rule("moments", "all", measures_gradient=True))

    def _prepare(self) -> None:
        super()._prepare()
        self._sizes = torch.tensor([shape.numel() for shape in self.shapes.values()], dtype=torch.float64)

    def _ratios_of(self, squares: Tensor) -> Tensor:
        """Return 1 / max(1, RMS) of each slot."""
        self._sizes = self._sizes.to(squares.device)  # moves in the first step
        return (squares[0] / self._sizes).sqrt().clamp(min=1.0).reciprocal()
