"""Muon on one rank: against torch's, its settings, a step that is skipped; ``several_ranks`` holds it to float64."""

import math

import pytest
import torch

from megabert.engine.buckets import split_groups
from megabert.optim import Fragment, StepSettings, build_optimizer
from megabert.optim.muon import orthogonal, owners_of
from megabert.settings.config.deepspeed import DEFAULT_BUCKET_SIZE
from megabert.settings.config.run import OptimizerConfig

SHAPES = {"tall.weight": (12, 4), "wide.weight": (3, 10), "LayerNorm.weight": (5,), "head.weight": (2, 3)}


def made(matrices=("tall.weight", "wide.weight"), stacked=1, **fields):
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}
    config = OptimizerConfig(name="muon", weight_decay=0.1, **fields)
    optimizer = build_optimizer(weights.items(), config, matrices=dict.fromkeys(matrices, stacked))
    table = [Fragment(p, 0, name, 0, p.numel()) for name, p in weights.items()]
    optimizer.attach(table, {name: p.shape for name, p in weights.items()}, None)
    return optimizer, weights


def with_gradients(weights, steps=3):
    """Yield the number of each step, once its gradients are there."""
    for step in range(1, steps + 1):
        generator = torch.Generator().manual_seed(step)
        for parameter in weights.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        yield step


def train(optimizer, weights, steps=3, **settings):
    for step in with_gradients(weights, steps):
        optimizer.step(StepSettings(lr=0.02, bias_step=step, **settings))


@pytest.mark.parametrize("scaling", ["match_rms_adamw", "original"])
def test_muon_in_16_bits_equals_torchs(scaling):
    optimizer, ours = made(muon_scaling=scaling, muon_dtype="bf16")
    theirs = {name: torch.nn.Parameter(weight.detach().clone()) for name, weight in ours.items()}
    matrices = [theirs["tall.weight"], theirs["wide.weight"]]
    plain = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn=scaling)
    train(optimizer, ours)
    for _ in with_gradients(theirs):
        plain.step()
    for name in ("tall.weight", "wide.weight"):
        assert (ours[name] - theirs[name]).norm() < 5e-3 * theirs[name].norm(), name


def test_everything_else_is_adamws_at_its_own_rate():
    optimizer, ours = made(muon_adamw_ratio=0.5)
    theirs = made()[1]
    adamw = build_optimizer(theirs.items(), OptimizerConfig(name="adamw", weight_decay=0.1))
    train(optimizer, ours)
    for step in with_gradients(theirs):
        adamw.step(StepSettings(lr=0.01, bias_step=step))
    for name in ("LayerNorm.weight", "head.weight"):
        assert torch.allclose(ours[name], theirs[name], rtol=1e-6)  # torch decays by a rounded factor
    assert [len(optimizer.moments(ours[name])) for name in SHAPES] == [1, 1, 2, 2]


def test_stacked_matrices_are_orthogonalised_one_by_one():
    (stacked, whole), (optimizer, single) = made(("tall.weight",), stacked=3), made(("tall.weight",))
    for each, weights in ((stacked, whole), (optimizer, single)):
        train(each, weights, steps=1)
    start = made()[1]["tall.weight"].detach()
    updates = [(w["tall.weight"].detach() - 0.998 * start).split(4) for w in (whole, single)]
    for block in updates[0]:  # 4 x 4 each, times 0.2 * sqrt(4) * 0.02
        values = torch.linalg.svdvals(block) / (0.2 * 2 * 0.02)
        assert values.min() > 0.3
        assert values.max() < 1.3
    assert not torch.allclose(updates[0][0], updates[1][0], atol=1e-3)


def test_a_step_that_is_not_finite_changes_nothing():
    optimizer, weights = made()
    train(optimizer, weights, steps=2)
    before = [tensor.clone() for w in weights.values() for tensor in (w.detach(), *optimizer.moments(w))]
    for parameter in weights.values():
        parameter.grad = torch.full_like(parameter, float("nan"))
    optimizer.step(StepSettings(lr=0.02, bias_step=3, gradient_scale=torch.tensor(0.0, dtype=torch.float64)))
    after = [tensor for w in weights.values() for tensor in (w.detach(), *optimizer.moments(w))]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert all(parameter.grad.isnan().any() for parameter in weights.values()), "the engine could not name it"


def test_orthogonal_of_zeros_is_zeros_and_singular_values_are_near_one():
    assert not orthogonal(torch.zeros(3, 5)).any()
    values = torch.linalg.svdvals(orthogonal(torch.randn(40, 30, generator=torch.Generator().manual_seed(1))))
    assert values.min() > 0.4
    assert values.max() < 1.3


def test_muon_has_to_be_told_and_does_not_clip():
    with pytest.raises(ValueError, match=r"pass models\.layer_matrices"):
        build_optimizer([], OptimizerConfig(name="muon"))
    assert OptimizerConfig(name="muon").max_grad_norm == 0
    with pytest.raises(ValueError, match="max_grad_norm=1 with name=muon, whose updates"):
        OptimizerConfig(name="muon", max_grad_norm=1.0)
    assert OptimizerConfig(name="muon", max_grad_norm=1.0, clip_both=True).max_grad_norm == 1


@pytest.mark.parametrize(
    ("stage", "ranks", "is_cut", "travels", "busiest"),
    [
        *[(1, 2, 7, 0.05, 1.04), (1, 4, 21, 0.10, 1.08), (1, 8, 61, 0.22, 1.11), (1, 16, 91, 0.43, 1.89)],
        *[(1, 64, 144, 0.79, 1.78), (3, 2, 96, 0.42, 1.00), (3, 4, 144, 0.65, 1.01), (3, 8, 144, 0.81, 1.06)],
        *[(3, 16, 144, 0.91, 1.17), (3, 64, 144, 0.98, 1.56)],
    ],
)
def test_what_travels_for_bert_large(stage, ranks, is_cut, travels, busiest):
    layer = [((3072, 1024), 3), ((1024, 1024), 1), ((4096, 1024), 1), ((1024, 4096), 1)]  # and how many matrices
    parameters = torch.nn.ParameterList(torch.empty(shape, device="meta") for _ in range(24) for shape, _ in layer)
    groups = [{"params": [parameter]} for parameter in parameters]  # what stage 3 cuts
    if stage == 1:
        groups = split_groups([{"params": list(parameters)}], parameters, DEFAULT_BUCKET_SIZE)
    stacked = {id(parameter): layer[i % 4][1] for i, parameter in enumerate(parameters)}
    sizes, held = [], []
    for group in groups:
        share, first = math.ceil(sum(p.numel() for p in group["params"]) / ranks), 0
        for parameter in group["params"]:
            rows, columns = parameter.shape[0] // stacked[id(parameter)], parameter.shape[1]
            for _ in range(stacked[id(parameter)]):
                end = first + rows * columns
                ends = [(max(first, r * share), min(end, (r + 1) * share)) for r in range(ranks)]
                sizes.append((rows, columns))
                held.append([max(0, b - a) for a, b in ends])
                first = end
    owners, work = owners_of(sizes, held), [0] * ranks
    for (rows, columns), owner in zip(sizes, owners, strict=True):
        work[owner] += rows * columns * min(rows, columns)
    stays = sum(numels[owner] for numels, owner in zip(held, owners, strict=True))
    assert sum(sum(numel > 0 for numel in numels) > 1 for numels in held) == is_cut
    assert 1 - stays / sum(map(sum, held)) == pytest.approx(travels, abs=0.005)
    assert max(work) * ranks / sum(work) == pytest.approx(busiest, abs=0.006)


def test_ranks_that_hold_as_much_of_matrices_share_the_work():
    # Stage 3 cuts each matrix alike, so all ranks hold as much of it; the greater ones are twice the work here.
    sizes = [(8, 8), (16, 8), (8, 8), (8, 16)] * 6
    owners = owners_of(sizes, [[rows * columns // 4] * 4 for rows, columns in sizes])
    work = [sum(math.prod(size) * min(size) for size, o in zip(sizes, owners, strict=True) if o == r) for r in range(4)]
    assert max(work) - min(work) <= 16 * 8 * 8
    # The rank that holds most has to send least, however much it computes.
    assert owners_of([(4, 4)] * 3, [[9, 7], [9, 7], [0, 16]]) == [0, 0, 1]
