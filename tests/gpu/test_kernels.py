"""Kernels on a real GPU, bfloat16 products included: ``pytest -m gpu tests/gpu``.

No result shows a run of this file. Its problems are those of the runbook's part `parity`, which passed on an H100 in
bfloat16, but for DeBERTa's attention, which is newer (benchmarks/gpu/results/h100.md).
"""

import pytest
import torch

from benchmarks.gpu.parity import DTYPES, parity_problems
from benchmarks.gpu.sizes import GPU
from megabert.ops.proof import problems
from megabert.ops.proof.problem import errors

pytestmark = pytest.mark.gpu
MANY = [512] * 100 + [300, 1]
"""Sequences for which a program of the backward pass takes all keys of a head in turn, on every card."""


@pytest.fixture
def generator():
    generator = torch.Generator("cuda")
    print("inputs of seed", generator.seed())  # fresh each run; a failure shows it
    return generator


def over_the_bound(problem, dtype) -> dict[str, float]:
    measured = errors(problem, dtype, backend="triton")
    return {name: error for name, error in measured.items() if not error <= problem.tolerance[dtype]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_problem_of_the_runbook(dtype, generator):
    made = parity_problems(GPU, generator)
    found = {label: over_the_bound(each, dtype) for label, each in made.items() if dtype in each.tolerance}
    assert {label: wrong for label, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_width", [16, 32, 64, 128])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (problems.attention_problem, {}),
        *((problems.rotary_attention_problem, {"reach": reach}) for reach in (None, 20)),
        (problems.disentangled_attention_problem, {"span": 100}),
    ],
)
@pytest.mark.parametrize("lengths", [[128, 0, 77], [512, 300, 40], MANY], ids=str)
def test_attention_of_every_head_width(lengths, make, options, head_width, dtype, generator):
    problem = make(lengths, generator, heads=3, head_width=head_width, padding=70, **options)
    assert over_the_bound(problem, dtype) == {}


def test_attention_repeats_bit_for_bit(generator):
    problem = problems.attention_problem([512, 300], generator, heads=4, head_width=64)
    gradients = []
    for _ in range(2):
        qkv = problem.tensors["qkv_TC"].bfloat16().requires_grad_()
        problem.run(qkv_TC=qkv, backend="triton").float().square().sum().backward()
        gradients.append(qkv.grad)
    assert torch.equal(*gradients)
