"""Kernels on a real GPU, bfloat16 products included: ``pytest -m gpu tests/gpu``.

No result shows a run of this file. Its ops, but for DeBERTa's attention, which is newer, passed on an H100 in other
shapes: in the runbook's part `parity` (benchmarks/gpu/results/h100.md).
"""

import pytest
import torch

from benchmarks.gpu.parity import DTYPES, ROUNDED, mask_problems
from benchmarks.gpu.sizes import GPU
from megabert.ops.proof import exact_problems, problems
from megabert.ops.proof.problem import errors
from megabert.ops.proof.table import LAYER_NORM_EXTRAS

pytestmark = pytest.mark.gpu
MANY = [512] * 100 + [300, 1]
"""Sequences for which a program of the backward pass takes all keys of a head in turn, on every card."""


@pytest.fixture
def generator():
    generator = torch.Generator("cuda")
    print("inputs of seed", generator.seed())  # fresh each run; a failure shows it
    return generator


def check(problem, dtype):
    measured = errors(problem, dtype, backend="triton")
    assert {name: error for name, error in measured.items() if not error <= problem.tolerance[dtype]} == {}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extras", LAYER_NORM_EXTRAS, ids="+".join)
@pytest.mark.parametrize("shape", [(1, 768), (5, 1023), (4099, 1024)])
def test_layer_norm(shape, extras, dtype, generator):
    check(problems.layer_norm_problem(shape, generator, extras=extras), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extras", [("sum",), ("bias", "dropout", "sum")])
def test_add_layer_norm(extras, dtype, generator):
    check(problems.add_layer_norm_problem((1001, 768), generator, extras=extras), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", [False, True])
def test_bias_gelu(approximate, dtype, generator):
    check(problems.bias_gelu_problem((1001, 4096), generator, approximate=approximate), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", [False, True])
def test_gated_gelu(approximate, dtype, generator):
    check(problems.gated_gelu_problem((1001, 2624), generator, approximate=approximate), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_width", [16, 32, 64, 128])
@pytest.mark.parametrize("lengths", [[1, 60, 33], [128, 0, 77], [256, 129], [512, 300, 40], MANY], ids=str)
def test_attention(lengths, head_width, dtype, generator):
    check(problems.attention_problem(lengths, generator, heads=3, head_width=head_width, padding=70), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_width", [32, 64, 128])
@pytest.mark.parametrize("reach", [None, 20, 64])
@pytest.mark.parametrize("lengths", [[1, 60, 33], [1030, 0, 77]], ids=str)
def test_rotary_attention(lengths, reach, head_width, dtype, generator):
    check(
        problems.rotary_attention_problem(lengths, generator, heads=3, head_width=head_width, reach=reach, padding=70),
        dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_width", [32, 64, 128])
@pytest.mark.parametrize("terms", [(), ("c2p",), ("p2c",), ("c2p", "p2c")], ids=str)
@pytest.mark.parametrize("lengths", [[1, 60, 33], [512, 0, 77]], ids=str)
def test_disentangled_attention(lengths, terms, head_width, dtype, generator):
    options = {"heads": 3, "head_width": head_width, "span": 100, "terms": terms, "padding": 70}
    check(problems.disentangled_attention_problem(lengths, generator, **options), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("classes", "padded"), [(30_522, 30_528), (2, 2)])
def test_cross_entropy(classes, padded, dtype, generator):
    check(problems.cross_entropy_problem((301, padded), generator, classes=classes), dtype)


@pytest.mark.parametrize("measures_gradient", [False, True])
@pytest.mark.parametrize("rounded", ROUNDED, ids=str)
def test_lamb(rounded, measures_gradient, generator):
    problem = exact_problems.lamb_problem(50_001, generator, rounded=rounded, measures_gradient=measures_gradient)
    check(problem, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_masks_equal_plain_torchs_bit_for_bit(dtype, generator):
    for problem in mask_problems(GPU, generator).values():
        check(problem, dtype)


def test_attention_repeats_bit_for_bit(generator):
    problem = problems.attention_problem([512, 300], generator, heads=4, head_width=64)
    gradients = []
    for _ in range(2):
        qkv = problem.tensors["qkv_TC"].bfloat16().requires_grad_()
        problem.run(qkv_TC=qkv, backend="triton").float().square().sum().backward()
        gradients.append(qkv.grad)
    assert torch.equal(*gradients)
