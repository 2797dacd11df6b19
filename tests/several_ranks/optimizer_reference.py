"""LAMB and StableAdamW in float64, parameter by parameter, from papers and published sources and not from our code."""

import dataclasses
import math

import torch
import torch.distributed as dist
from several_ranks import muon_reference
from several_ranks.toy_training import gather_whole, given_gradients, make_engine, train_step, whole_masters
from torch import Tensor

from megabert.optim import Fragment


class ReferenceLamb:
    """One step of a variant, or of StableAdamW. ``clip`` is the global clipping in the optimizer; apex alone has it."""

    def __init__(
        self, weights: dict[str, Tensor], *, variant: str, weight_decay: float, lr: float, clip: float = math.inf
    ) -> None:
        self.weights = {name: weight.double().clone() for name, weight in weights.items()}
        self.m = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.v = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.variant, self.weight_decay, self.lr, self.clip, self.t = variant, weight_decay, lr, clip, 0
        self.shortened = 0  # how often StableAdamW shortened a step

    def step(self, gradients: dict[str, Tensor]) -> None:
        self.t += 1
        correction1, correction2 = 1 - 0.9**self.t, 1 - 0.999**self.t
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients.values()))
        divisor = norm / self.clip if norm > self.clip else 1.0
        for name, weight in self.weights.items():
            excluded = name.endswith("bias") or "LayerNorm" in name
            weight_decay = 0.0 if excluded else self.weight_decay
            gradient = gradients[name].double() / divisor
            m = self.m[name].mul_(0.9).add_(gradient, alpha=0.1)
            v = self.v[name].mul_(0.999).add_(gradient**2, alpha=0.001)
            corrected = self.variant in ("apex", "nvlamb", "stable_adamw")
            m_hat, v_hat = (m / correction1, v / correction2) if corrected else (m, v)
            update = m_hat / (v_hat.sqrt() + 1e-6) + weight_decay * weight
            weight_norm, update_norm = float(weight.norm()), float(update.norm())
            ratio = weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0
            lr = self.lr
            if (self.variant == "paper" and excluded) or (self.variant == "apex" and weight_decay == 0):
                ratio = 1.0
            if self.variant == "stable_adamw":
                ratio = 1 / max(1.0, float((gradient**2 / v_hat.clamp(min=1e-12)).mean().sqrt()))
                self.shortened += ratio < 1
            if self.variant == "deepspeed":
                lr *= math.sqrt(correction2) / correction1
                if weight_norm > 0 and update_norm > 0:
                    ratio = min(max(ratio, 0.01), 0.3)
            weight.sub_(update, alpha=lr * ratio)


def optimizer_errors(
    world, engine_name: str, *, variant="nvlamb", steps=100, attached=True, micro_steps=1
) -> dict[str, float]:
    """Train a toy; return ||a - b|| / ||b|| of every parameter against the reference fed the optimizer's gradients."""
    engine = engine_of(world, engine_name, variant)
    if engine.zero_stage == 3 and world.size > 1:  # one rank pads nothing
        assert sum(world.gather(poison_padding(engine))), "there is no padding"
    kind = muon_reference.ReferenceMuon if variant.startswith("muon") else ReferenceLamb
    reference = kind(whole_masters(engine, world), variant=variant, weight_decay=0.01, lr=0.01)
    optimizer, seen = engine.optimizer, {}
    if not attached:  # stock LAMB: every flat is taken for a parameter
        flats = list({id(fragment.flat): fragment.flat for fragment in engine.fragments}.values())
        names = [f"flat {index}" for index in range(len(flats))]
        table = [Fragment(flat, 0, name, 0, flat.numel()) for flat, name in zip(flats, names, strict=True)]
        optimizer.attach(table, {f.parameter: f.flat.shape for f in table}, None)
    plain_step = optimizer.step

    def recording_step(settings) -> None:
        seen.update(given_gradients(engine, settings))
        plain_step(settings)

    optimizer.step = recording_step
    for step in range(1, steps + 1):
        train_step(engine, world, step, micro_steps=micro_steps)
        reference.step(gather_whole(engine, world, lambda f: seen[f.parameter, f.start]))
    assert reference.shortened or variant != "stable_adamw"
    return relative_errors(engine, world, reference)


def engine_of(world, engine_name: str, variant: str):
    """Make a toy under a variant of LAMB, or under StableAdamW or Muon, which do not clip."""
    if variant.startswith("muon"):
        return make_engine(world, engine_name, optimizer="muon", clip=0.0, **muon_reference.VARIANTS[variant])
    if variant == "stable_adamw":
        return make_engine(world, engine_name, optimizer=variant, clip=0.0)
    return make_engine(world, engine_name, variant=variant)


def masters_after_given_gradients(world, engine_name: str, *, variant: str, steps: int = 5) -> dict[str, Tensor]:
    """Train a toy whose optimizer finds the same gradients on every world and stage; return the whole masters."""
    engine = engine_of(world, engine_name, variant)
    optimizer, plain_step, number = engine.optimizer, engine.optimizer.step, [0]

    def step_by_given_gradients(settings) -> None:
        flats = {id(flat) for group in optimizer.param_groups for flat in group["params"] if flat.grad is not None}
        for index, (name, shape) in enumerate(engine.shapes.items()):
            generator = torch.Generator().manual_seed(1000 * number[0] + index)
            gradient = torch.randn(shape.numel(), generator=generator) * (1 + number[0])
            for f in engine.fragments:
                if f.parameter == name and id(f.flat) in flats:
                    f.view(f.flat.grad).copy_(gradient[f.start : f.start + f.numel])
        plain_step(dataclasses.replace(settings, gradient_scale=1.0))

    optimizer.step = step_by_given_gradients
    for number[0] in range(1, steps + 1):
        train_step(engine, world, number[0])
    return whole_masters(engine, world)


def clipping_errors(world, engine_name: str, *, clip: float, steps: int) -> dict[str, float]:
    """Train a toy alone; return the errors of our clipping and LAMB against apex's, fed the gradients as they came."""
    engine = make_engine(world, engine_name, variant="apex", clip=clip)
    reference = ReferenceLamb(whole_masters(engine, world), variant="apex", weight_decay=0.01, lr=0.01, clip=clip)
    engine_step, norms = engine.step, []

    def recording_step(settings, sums):
        gradients = {name: gradient.clone() for name, gradient in engine._stage.gradients()}
        reference.step({name: gradients[name].view_as(b) for name, b in reference.weights.items()})
        outcome = engine_step(settings, sums)
        norms.append(outcome.grad_norm)
        return outcome

    engine.step = recording_step
    for step in range(1, steps + 1):
        train_step(engine, world, step)
    assert min(norms) > clip, "nothing was clipped"
    return relative_errors(engine, world, reference)


def relative_errors(engine, world, reference: ReferenceLamb) -> dict[str, float]:
    """||a - b|| / ||b|| of every parameter."""
    weights = whole_masters(engine, world)
    errors = {name: float((weights[name] - b).norm() / b.norm()) for name, b in reference.weights.items()}
    dist.barrier(group=world.control)
    return errors


def poison_padding(engine) -> int:
    """Write NaN over every element of the flats that belongs to no parameter; return how many there were."""
    valid = {id(f.flat): torch.zeros(f.flat.numel(), dtype=torch.bool) for f in engine.fragments}
    flats = {id(f.flat): f.flat for f in engine.fragments}
    for fragment in engine.fragments:
        valid[id(fragment.flat)][fragment.offset : fragment.offset + fragment.numel] = True
    for key, flat in flats.items():
        flat.detach().view(-1)[~valid[key]] = float("nan")
    return sum(int((~mask).sum()) for mask in valid.values())
