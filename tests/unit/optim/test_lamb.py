import pytest
import torch

from megabert.optim import AdamW, Fragment, Lamb, StepSettings
from megabert.settings.config.run import OptimizerConfig


def test_deepspeed_variant_clips_the_ratio_and_scales_the_step():
    before, gradient = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    parameter = torch.nn.Parameter(before.clone())
    optimizer = Lamb([parameter], OptimizerConfig(lamb_variant="deepspeed", weight_decay=0.0))
    optimizer.attach([Fragment(parameter, 0, "dense.bias", 0, 5)], {"dense.bias": torch.Size((5,))}, None)
    parameter.grad = gradient.clone()
    optimizer.step(StepSettings(lr=0.1))
    update = 0.1 * gradient / ((0.001 * gradient**2).sqrt() + 1e-6)
    ratio = min(max(float(before.norm() / update.norm()), 0.01), 0.3)
    assert optimizer.trust_ratios == {"dense.bias": pytest.approx(ratio, rel=1e-4)}
    step = 0.1 * (1 - 0.999) ** 0.5 / (1 - 0.9)
    assert torch.allclose(parameter, before - step * ratio * update, atol=1e-6)


@pytest.mark.parametrize("variant", ["apex", "nvlamb", "paper", "deepspeed"])
def test_zero_norm_gives_ratio_1(variant):
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = Lamb([parameter], OptimizerConfig(lamb_variant=variant))
    optimizer.attach([Fragment(parameter, 0, "dense.weight", 0, 3)], {"dense.weight": torch.Size((3,))}, None)
    parameter.grad = torch.ones(3)
    optimizer.step(StepSettings(lr=0.1))
    assert optimizer.trust_ratios == {"dense.weight": 1.0}
    assert (parameter < 0).all()


def test_adamw_takes_its_bias_step_from_the_trainer():
    ours, theirs = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    optimizer = AdamW([ours], OptimizerConfig(name="adamw"))
    plain = torch.optim.AdamW([theirs], lr=0.1, eps=1e-6, weight_decay=0.01)
    for step in range(1, 4):
        for parameter in (ours, theirs):
            parameter.grad = torch.arange(4.0) * step
        optimizer.step(StepSettings(lr=0.1, bias_step=step))
        plain.step()
    assert torch.allclose(ours, theirs, rtol=1e-6)
    assert [tensor.shape for tensor in optimizer.moments(ours)] == [(4,), (4,)]
