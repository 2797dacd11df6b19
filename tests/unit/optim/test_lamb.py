from types import SimpleNamespace

import pytest
import torch

from megabert.optim import AdamW, Fragment, Lamb, StepSettings, build_optimizer
from megabert.settings.config.run import OptimizerConfig

SHAPES = {
    name: torch.Size(shape)
    for name, shape in (("dense.weight", (5, 3)), ("dense.bias", (5,)), ("LayerNorm.weight", (4,)))
}


def tensors(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def whole(variant: str) -> tuple[Lamb, dict[str, torch.nn.Parameter]]:
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in tensors().items()}
    optimizer = build_optimizer(
        parameters.items(), OptimizerConfig(name="lamb", lamb_variant=variant, weight_decay=0.1)
    )
    optimizer.attach([Fragment(p, 0, name, 0, p.numel()) for name, p in parameters.items()], SHAPES, None)
    for name, gradient in tensors(1).items():
        parameters[name].grad = gradient
    optimizer.step(StepSettings(lr=0.1))
    return optimizer, parameters


def test_first_nvlamb_step_is_normalised_per_parameter():
    optimizer, parameters = whole("nvlamb")
    for name, before in tensors().items():
        decay = 0.0 if name != "dense.weight" else 0.1
        update = tensors(1)[name].sign() + decay * before  # corrected moments of a first step: m / sqrt(v) = sign
        ratio = before.norm() / update.norm()
        assert torch.allclose(parameters[name], before - 0.1 * ratio * update, atol=1e-5)
        assert optimizer.trust_ratios[name] == pytest.approx(float(ratio), rel=1e-4)


@pytest.mark.parametrize("variant", ["apex", "paper"])
def test_apex_and_paper_do_not_adapt_biases_and_layer_norms(variant):
    ratios = whole(variant)[0].trust_ratios
    assert ratios["dense.bias"] == ratios["LayerNorm.weight"] == 1.0
    assert ratios["dense.weight"] != 1.0


def test_deepspeed_variant_clips_the_ratio_and_scales_the_step():
    optimizer, parameters = whole("deepspeed")
    assert all(0.01 <= ratio <= 0.3 for ratio in optimizer.trust_ratios.values())
    before, gradient = tensors()["dense.bias"], tensors(1)["dense.bias"]
    update = 0.1 * gradient / ((0.001 * gradient**2).sqrt() + 1e-6)
    ratio = min(max(float(before.norm() / update.norm()), 0.01), 0.3)
    step = 0.1 * (1 - 0.999) ** 0.5 / (1 - 0.9)
    assert torch.allclose(parameters["dense.bias"], before - step * ratio * update, atol=1e-6)


@pytest.mark.parametrize("variant", ["apex", "nvlamb", "paper", "deepspeed"])
def test_zero_norm_gives_ratio_1(variant):
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = Lamb([parameter], OptimizerConfig(lamb_variant=variant))
    optimizer.attach([Fragment(parameter, 0, "dense.weight", 0, 3)], {"dense.weight": torch.Size((3,))}, None)
    parameter.grad = torch.ones(3)
    optimizer.step(StepSettings(lr=0.1))
    assert optimizer.trust_ratios == {"dense.weight": 1.0}
    assert (parameter < 0).all()


@pytest.mark.parametrize("variant", ["apex", "nvlamb", "paper", "deepspeed"])
def test_shards_of_two_ranks_equal_whole_parameters(variant):
    flat = torch.cat([tensor.view(-1) for tensor in tensors().values()])  # 15 + 5 + 4 elements
    gradient = torch.cat([tensor.view(-1) for tensor in tensors(1).values()])
    table = [[("dense.weight", 0, 11)], [("dense.weight", 11, 4), ("dense.bias", 0, 5), ("LayerNorm.weight", 0, 4)]]
    vectors: list[torch.Tensor] = []
    # Two passes: the first learns each rank's sums, the second gives both ranks the total.
    for attempt in range(2):
        shards = [flat[:11].clone(), flat[11:].clone()]
        for rank, shard in enumerate(shards):
            optimizer = Lamb([shard], OptimizerConfig(lamb_variant=variant, weight_decay=0.0))
            position, fragments = 0, []
            for name, start, numel in table[rank]:
                fragments.append(Fragment(shard, position, name, start, numel))
                position += numel

            def all_reduce(vector, attempt=attempt):
                vectors.append(vector.clone()) if attempt == 0 else vector.copy_(vectors[0] + vectors[1])

            optimizer.attach(fragments, SHAPES, SimpleNamespace(sum_over_ranks=all_reduce))
            shard.grad = (gradient[:11] if rank == 0 else gradient[11:]).clone()
            optimizer.step(StepSettings(lr=0.1))
    without_decay = {name: torch.nn.Parameter(tensor) for name, tensor in tensors().items()}
    reference = Lamb(without_decay.values(), OptimizerConfig(lamb_variant=variant, weight_decay=0.0))
    reference.attach([Fragment(p, 0, name, 0, p.numel()) for name, p in without_decay.items()], SHAPES, None)
    for name, value in tensors(1).items():
        without_decay[name].grad = value
    reference.step(StepSettings(lr=0.1))
    whole_flat = torch.cat([parameter.detach().view(-1) for parameter in without_decay.values()])
    assert torch.allclose(torch.cat(shards), whole_flat, rtol=1e-6)


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
