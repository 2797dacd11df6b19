"""The binding of Apex's FusedLAMB against a stand-in of its signature and arithmetic; it has not met a real Apex."""

import importlib.machinery
import sys
import types

import pytest
import torch

from megabert.foundation.errors import ConfigError, KernelError
from megabert.optim import Fragment, Lamb, StepSettings, apex_lamb, build_optimizer
from megabert.settings.config.run import OptimizerConfig

SHAPES = {"dense.weight": (5, 3), "dense.bias": (5,), "LayerNorm.weight": (4,)}


class FusedLAMB(torch.optim.Optimizer):
    """The arithmetic of apex/optimizers/fused_lamb.py and csrc/multi_tensor_lamb.cu (July 2026), tensor by tensor."""

    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.01,
        amsgrad=False,
        adam_w_mode=True,
        grad_averaging=True,
        set_grad_none=True,
        max_grad_norm=1.0,
        use_nvlamb=False,
    ):
        own = {"bias_correction": bias_correction, "grad_averaging": grad_averaging, "max_grad_norm": max_grad_norm}
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, **own})
        self.adam_w_mode, self.use_nvlamb = adam_w_mode, use_nvlamb

    def step(self, closure=None):
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        limit = self.defaults["max_grad_norm"]
        divisor = norm / limit if norm > limit else 1.0
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                self._update(group, p, p.grad / divisor)

    def _update(self, group, p, gradient):
        (beta1, beta2), decay, state = group["betas"], group["weight_decay"], self.state[p]
        if len(state) == 0:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        m, v = state["exp_avg"], state["exp_avg_sq"]
        if not self.adam_w_mode:
            gradient = gradient + decay * p
        m.mul_(beta1).add_(gradient, alpha=1 - beta1 if group["grad_averaging"] else 1.0)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrections = [1 - beta ** group["step"] if group["bias_correction"] else 1.0 for beta in (beta1, beta2)]
        update = (m / corrections[0]) / ((v / corrections[1]).sqrt() + group["eps"])
        if self.adam_w_mode:
            update = update + decay * p
        ratio = 1.0
        if (self.use_nvlamb or decay != 0) and p.norm() != 0 and update.norm() != 0:
            ratio = p.norm() / update.norm()
        p.sub_(group["lr"] * ratio * update)


def install(monkeypatch, *names):
    """Make modules of these names importable."""
    for name in names:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def apex_stand_in(monkeypatch):
    install(monkeypatch, "apex", "apex.optimizers", "amp_C")
    sys.modules["apex.optimizers"].FusedLAMB = FusedLAMB


@pytest.fixture
def on_any_device(monkeypatch):
    """Let the stand-in run on the CPU."""
    original = apex_lamb.apex_obstacle
    monkeypatch.setattr(apex_lamb, "apex_obstacle", lambda device, **options: original("cuda", **options))


def random_tensors():
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in SHAPES.items()}


def optimizer_of(parameters, backend, **fields):
    config = OptimizerConfig(**{"name": "lamb", "weight_decay": 0.1, **fields})
    optimizer = build_optimizer(parameters.items(), config, lamb_backend=backend)
    table = [Fragment(p, 0, name, 0, p.numel()) for name, p in parameters.items()]
    optimizer.attach(table, {name: p.shape for name, p in parameters.items()}, None)
    return optimizer


@pytest.mark.parametrize(("variant", "decay"), [("apex", 0.1), ("apex", 0.0), ("nvlamb", 0.1), ("paper", 0.1)])
def test_apex_takes_the_same_steps_as_ours(variant, decay, apex_stand_in, on_any_device):
    weights = random_tensors()
    weights["dense.bias"].zero_()  # a norm of zero: ratio 1
    ours, theirs = ({name: torch.nn.Parameter(w.clone()) for name, w in weights.items()} for _ in range(2))
    optimizers = [
        optimizer_of(parameters, backend, lamb_variant=variant, weight_decay=decay)
        for parameters, backend in ((ours, "torch"), (theirs, "apex"))
    ]
    assert isinstance(optimizers[0], Lamb)
    for bias_step in (1, 2, 1):  # a second phase starts the bias correction anew
        gradients = {name: 10 * gradient for name, gradient in random_tensors().items()}
        for parameters, optimizer in zip((ours, theirs), optimizers, strict=True):
            for name, parameter in parameters.items():
                parameter.grad = gradients[name].clone()
            optimizer.step(StepSettings(lr=0.1, bias_step=bias_step))
    for name, parameter in theirs.items():
        torch.testing.assert_close(parameter, ours[name])
        for moment, expected in zip(optimizers[1].moments(parameter), optimizers[0].moments(ours[name]), strict=True):
            torch.testing.assert_close(moment, expected)


def test_moments_of_a_checkpoint_reach_apex_before_its_first_step(apex_stand_in, on_any_device):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = optimizer_of({"dense.weight": parameter}, "apex")
    for moment in optimizer.moments(parameter):
        moment.fill_(4.0)
    parameter.grad = torch.zeros(3)
    optimizer.step(StepSettings(lr=0.0))
    assert torch.allclose(optimizer.moments(parameter)[0], torch.tensor(3.6))


@pytest.mark.parametrize("fields", [{"lamb_variant": "deepspeed"}, {"lamb_variant": "paper", "weight_decay": 0.0}])
def test_variant_that_apex_lacks_is_refused(fields, apex_stand_in):
    with pytest.raises(ConfigError, match=f"ops.lamb=apex cannot do optimizer.lamb_variant={fields['lamb_variant']}"):
        optimizer_of({"dense.weight": torch.nn.Parameter(torch.ones(3))}, "apex", **fields)


def test_sharded_parameters_are_refused(apex_stand_in):
    config = OptimizerConfig(name="lamb")
    optimizer = build_optimizer([("w", torch.nn.Parameter(torch.ones(3)))], config, lamb_backend="apex")
    with pytest.raises(KernelError, match=r"whole tensors, and ZeRO shards them.*zero0"):
        optimizer.attach([], {"w": torch.Size((1,))}, types.SimpleNamespace())


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ((), r"ops\.lamb=apex cannot run: NVIDIA Apex is not importable"),
        (("apex",), "no module amp_C: it was built without CUDA"),
        (("apex", "apex.optimizers", "amp_C"), r"ops\.lamb=apex cannot run: NVIDIA Apex needs a CUDA GPU"),
    ],
)
def test_apex_that_cannot_run_is_refused_with_the_reason(modules, message, monkeypatch):
    install(monkeypatch, *modules)
    with pytest.raises(KernelError, match=message):
        optimizer_of({"dense.weight": torch.nn.Parameter(torch.ones(3))}, "apex")
