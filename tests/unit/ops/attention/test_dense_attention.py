"""Attention on a CPU against the float64 reference and torch's own, with layouts made once and blocks of any size."""

import pytest
import torch
from torch.nn import functional

from megabert.ops.attention.dense.api import attention, plan_attention
from megabert.ops.attention.dense.cpu import DenseSequences, padded_attention
from megabert.ops.attention.dense.reference import attention_reference
from megabert.ops.dropout import DropoutStream, Heads, attention_dropout
from megabert.ops.proof.problem import errors
from megabert.ops.proof.problems import attention_problem

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
LENGTHS = {
    "one token": ([1], 0),
    "unequal, one twice": ([5, 17, 5, 1, 33], 0),
    "padded": ([9, 4, 0, 0], 6),
    "long": ([130, 128, 77], 3),
    "none": ([0, 0], 5),
}


def site_of(cu_seqlens, tokens, heads):
    lengths = cu_seqlens.diff()
    positions = torch.zeros(tokens, dtype=torch.int64)
    positions[: cu_seqlens[-1]] = torch.cat([torch.arange(length) for length in lengths.tolist()])
    seeds = torch.arange(1, lengths.numel() + 1, dtype=torch.int32)
    stream = DropoutStream.from_batch(seeds, cu_seqlens, positions)
    return attention_dropout(stream, layer=1, probability=0.1, num_heads=heads)


def run(op, qkv, cu_seqlens, grad, **options):
    qkv = qkv.clone().requires_grad_()
    sequences = DenseSequences(cu_seqlens, int(cu_seqlens.diff().max()))
    out = op(qkv, sequences, **options) if op is attention else op(qkv, sequences, Heads(**options))
    out.backward(grad.to(out.dtype))
    return out.detach(), qkv.grad


@pytest.mark.parametrize("has_dropout", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("lengths", "padding"), LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("heads", "head_width"), [(1, 8), (3, 64)])
def test_attention_and_gradients_match_float64(lengths, padding, heads, head_width, dtype, has_dropout, generator):
    sizes = {"heads": heads, "head_width": head_width, "padding": padding, "dropout": 0.1 * has_dropout}
    problem = attention_problem(lengths, generator, **sizes)
    assert max(errors(problem, dtype, backend="torch").values()) < TOLERANCE[dtype]


def test_padding_belongs_to_no_sequence(boundaries):
    cu_seqlens, qkv, grad = boundaries([9, 4, 0]), torch.randn(19, 3 * 8).bfloat16(), torch.randn(19, 8)
    for value in run(attention, qkv, cu_seqlens, grad, num_heads=2):
        assert value.dtype == torch.bfloat16
        assert value[13:].abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_gets_the_gradient_that_a_dense_layer_would_give_it_bit_for_bit(dtype, generator, boundaries):
    qkv = torch.randn(20, 3 * 2 * 8, generator=generator).to(dtype)
    gradients = []
    for is_handed_on in (False, True):
        bias = torch.zeros(qkv.shape[1], dtype=dtype, requires_grad=True)
        sums = qkv + (bias.detach() if is_handed_on else bias)
        out = attention(
            sums.requires_grad_(),
            DenseSequences(boundaries([5, 7]), 7),
            num_heads=2,
            bias_C=bias if is_handed_on else None,
        )
        out.square().sum().backward()
        gradients.append(bias.grad)
    assert torch.equal(*gradients)


def test_attention_matches_torch_scaled_dot_product_attention(boundaries):
    qkv = torch.randn(12, 3 * 2 * 16)
    out = attention(qkv, DenseSequences(boundaries([5, 7]), 7), num_heads=2)
    for rows in (slice(0, 5), slice(5, 12)):
        q, k, v = qkv[rows].unflatten(-1, (3, 2, 16)).permute(1, 2, 0, 3)
        expected = functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        torch.testing.assert_close(out[rows], expected)


def test_attention_plan_made_once_changes_nothing(boundaries):
    cu_seqlens = boundaries([5, 7, 5])
    qkv = torch.randn(20, 3 * 8)
    planned = plan_attention(cu_seqlens, tokens=20, max_seqlen=7, num_heads=2)
    assert planned.blocks is not None
    with_plan = attention(qkv, planned, num_heads=2)
    assert torch.equal(with_plan, attention(qkv, DenseSequences(cu_seqlens, 7), num_heads=2))


def test_attention_small_blocks_change_nothing(boundaries, monkeypatch):
    cu_seqlens, qkv, grad = boundaries([6] * 9), torch.randn(54, 3 * 8), torch.randn(54, 8)
    options = {"num_heads": 2, "dropout": site_of(cu_seqlens, 54, 2)}
    whole = run(attention, qkv, cu_seqlens, grad, **options)
    monkeypatch.setattr("megabert.ops.attention.dense.cpu.BLOCK", 200)
    for value, expected in zip(run(attention, qkv, cu_seqlens, grad, **options), whole, strict=True):
        torch.testing.assert_close(value, expected)


def test_attention_padded_form_for_other_devices_matches(boundaries):
    cu_seqlens, qkv, grad = boundaries([6, 11, 0]), torch.randn(20, 3 * 8), torch.randn(20, 8)
    options = {"num_heads": 2, "dropout": site_of(cu_seqlens, 20, 2)}
    ours = run(padded_attention, qkv, cu_seqlens, grad, **options)
    for value, expected in zip(ours, run(attention, qkv, cu_seqlens, grad, **options), strict=True):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("op", [attention, lambda *packed, **heads: attention_reference(*packed, Heads(**heads))])
def test_attention_passes_gradcheck(op, boundaries):
    cu_seqlens = boundaries([3, 2])
    qkv = torch.randn(6, 3 * 4, dtype=torch.float64, requires_grad=True)
    options, sequences = {"num_heads": 2, "dropout": site_of(cu_seqlens, 6, 2)}, DenseSequences(cu_seqlens, 3)
    assert torch.autograd.gradcheck(lambda x: op(x, sequences, **options), [qkv])


def test_attention_of_a_sequence_does_not_depend_on_its_neighbours(boundaries):
    qkv = torch.randn(15, 3 * 8)
    together = attention(qkv, DenseSequences(boundaries([4, 6, 5]), 6), num_heads=2)
    alone = attention(qkv[4:10], DenseSequences(boundaries([6]), 6), num_heads=2)
    torch.testing.assert_close(together[4:10], alone)
