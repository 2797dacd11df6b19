"""The trial of an optimizer passes ours, and says of each way to be wrong that the optimizer is."""

import pytest
import torch

from megabert.foundation.errors import MegabertError
from megabert.optim import AdamW, no_decay, trial
from megabert.optim.trial import check_optimizer


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(("adamw", {}), ("stable_adamw", {})),
        *(("lamb", {"lamb_variant": variant}) for variant in ("apex", "nvlamb", "paper", "deepspeed")),
    ],
)
def test_ours_pass(name, settings):
    assert check_optimizer(name, **settings) < 1e-6


def normed(norm_of, *, has_sink=True, moment="exp_avg", checks_scale=True):
    """Return an optimizer that divides the momentum of each fragment by a norm."""

    class Normed(AdamW):
        state_names = ("exp_avg",)

        @torch.no_grad()
        def step(self, settings):
            scale = float(settings.gradient_scale)
            if checks_scale and not scale:
                return
            flats = {id(flat): flat for group in self.param_groups for flat in group["params"]}
            for flat in flats.values():
                state = self.state[flat] if moment != "exp_avg" else {moment: self.moments(flat)[0]}
                state.setdefault(moment, torch.zeros_like(flat)).lerp_(flat.grad * scale, 0.1)
                flat.grad.copy_(state[moment])  # the update
            own = [f for f in self.fragments if id(f.flat) in flats]
            norms = norm_of(self, own)
            for f, norm in zip(own, norms, strict=True):
                f.view().sub_(f.view(f.flat.grad) / norm, alpha=settings.lr)
            for flat in flats.values() if has_sink else ():
                self.sink.updated(flat)

    return Normed


def whole(self, fragments):
    slots = {name: slot for slot, name in enumerate(self.shapes)}
    squares = torch.zeros(len(slots), dtype=torch.float64)
    for f in fragments:
        squares[slots[f.parameter]] += f.view(f.flat.grad).double().square().sum()
    if self.ranks:
        self.ranks.sum_over_ranks(squares)
    return [float(squares[slots[f.parameter]].sqrt()) for f in fragments]


def own_fragment(self, fragments):
    return [float(f.view(f.flat.grad).double().norm()) for f in fragments]


def own_flat(self, fragments):
    sums = {id(f.flat): f.flat.grad.double().square().sum() for f in fragments}
    for total in sums.values():
        if self.ranks:
            self.ranks.sum_over_ranks(total)
    return [float(sums[id(f.flat)].sqrt()) for f in fragments]


@pytest.fixture
def built_as(monkeypatch):
    def use(optimizer):
        def build(named, config, **_):
            named = list(named)
            parts = ([p for name, p in named if no_decay(name) == is_free] for is_free in (True, False))
            return optimizer([{"params": part} for part in parts], config)

        monkeypatch.setattr(trial, "build_optimizer", build)

    return use


def test_a_norm_over_the_whole_parameter_passes(built_as):
    built_as(normed(whole))
    assert check_optimizer("lamb") < 1e-6


@pytest.mark.parametrize(
    "optimizer",
    [
        normed(own_fragment),
        normed(own_flat),
        normed(whole, checks_scale=False),
        normed(whole, moment="kept_elsewhere"),
    ],
    ids=["norm of its own fragment", "norm of its flat", "changes at scale 0", "state that no checkpoint stores"],
)
def test_a_wrong_optimizer_is_told_by_a_sentence(built_as, optimizer):
    built_as(optimizer)
    with pytest.raises(MegabertError, match=r"3 ranks under ZeRO are off by .* from float64 on one rank\. Sum over a"):
        check_optimizer("lamb")


def test_an_optimizer_without_its_sink_is_told(built_as):
    built_as(normed(whole, has_sink=False))
    with pytest.raises(MegabertError, match=r"sink\.updated"):
        check_optimizer("lamb")
