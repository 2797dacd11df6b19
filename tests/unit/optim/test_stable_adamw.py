"""StableAdamW: which step is shortened and by how much; ``several_ranks`` holds it to float64 under ZeRO."""

import pytest
import torch

from megabert.optim import Fragment, StepSettings, build_optimizer
from megabert.settings.config.run import OptimizerConfig


def test_stable_adamw_shortens_the_step_of_a_surprised_parameter():
    shapes = {"calm.weight": (3, 2), "sudden.weight": (2, 2), "sudden.bias": (2,)}
    parameters = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}
    optimizer = build_optimizer(parameters.items(), OptimizerConfig(name="stable_adamw", weight_decay=0.1))
    table = [Fragment(p, 0, name, 0, p.numel()) for name, p in parameters.items()]
    optimizer.attach(table, {name: p.shape for name, p in parameters.items()}, None)
    for step, factor in ((1, 1.0), (2, 30.0)):
        before = {name: p.detach().clone() for name, p in parameters.items()}
        for name, parameter in parameters.items():
            parameter.grad = torch.full_like(parameter, factor if name.startswith("sudden") else 1.0)
        optimizer.step(StepSettings(lr=0.1, bias_step=step))
    # The second gradient: v_hat = (0.999 * 0.001 + 0.001 * 900) / (1 - 0.999**2) and m_hat likewise.
    v_hat, m_hat = (0.999e-3 + 0.9) / (1 - 0.999**2), (0.09 + 3.0) / 0.19
    factor = 1 / (30 / v_hat**0.5)
    assert optimizer.trust_ratios == pytest.approx({"calm.weight": 1.0, "sudden.weight": factor, "sudden.bias": factor})
    assert 0.5 < factor < 0.8
    for name, decay in (("sudden.weight", 0.1), ("sudden.bias", 0.0)):  # decay, too, by the shortened rate
        step = factor * 0.1 * (m_hat / v_hat**0.5 + decay * before[name])
        assert torch.allclose(parameters[name], before[name] - step, atol=1e-6)


def test_stable_adamw_does_not_clip_unless_asked():
    assert OptimizerConfig(name="stable_adamw").max_grad_norm == 0
    assert OptimizerConfig(name="adamw").max_grad_norm == OptimizerConfig().max_grad_norm == 1
    with pytest.raises(ValueError, match=r"max_grad_norm=0\.5 with name=stable_adamw, which shortens the step"):
        OptimizerConfig(name="stable_adamw", max_grad_norm=0.5)
    assert OptimizerConfig(name="stable_adamw", max_grad_norm=0.5, clip_both=True).max_grad_norm == 0.5
