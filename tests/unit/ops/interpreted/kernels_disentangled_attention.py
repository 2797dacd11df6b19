"""Kernels of attention with relative positions in the interpreter: terms, tables, packings, masks against float64."""

import pytest
import torch
from support.soak import in_soak

from megabert.foundation.errors import KernelError
from megabert.ops.attention.disentangled import triton as launches
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions
from megabert.ops.dropout import Heads
from megabert.ops.proof.exact_problems import disentangled_attention_mask_problem
from megabert.ops.proof.problems import disentangled_attention_problem

BOTH, ODD, EMPTY, ONE = ("c2p", "p2c"), ([5, 33, 1], 3), ([9, 0, 4, 0], 70), ([1], 0)


@pytest.mark.parametrize(
    ("heads", "head_width", "terms", "dropout", "dtype", "packed"),
    [
        (2, 64, BOTH, 0.1, torch.float16, ODD),
        (1, 64, BOTH, 0.0, torch.float32, EMPTY),
        (1, 32, ("c2p",), 0.0, torch.float32, EMPTY),
        (1, 32, ("p2c",), 0.0, torch.float32, EMPTY),
        (1, 24, BOTH, 0.1, torch.float16, EMPTY),
        (1, 128, BOTH, 0.1, torch.float16, EMPTY),
        (1, 64, BOTH, 0.1, torch.float16, ONE),
        (1, 64, BOTH, 0.1, torch.float16, ([0, 0], 5)),
        *in_soak(
            (2, 32, BOTH, 0.1, torch.float32, ODD),
            (1, 32, BOTH, 0.0, torch.float16, EMPTY),
            (1, 64, ("c2p",), 0.1, torch.float16, ODD),
            (1, 64, ("p2c",), 0.1, torch.float16, ODD),
            (1, 32, (), 0.1, torch.float32, ODD),
            (1, 24, BOTH, 0.1, torch.float16, ODD),
            (1, 128, BOTH, 0.1, torch.float16, ODD),
        ),
    ],
    ids=str,
)
def test_matches_reference(heads, head_width, terms, dropout, dtype, packed, generator, assert_close):
    lengths, padding = packed
    problem = disentangled_attention_problem(
        [*lengths],
        generator,
        heads=heads,
        head_width=head_width,
        span=10,
        terms=terms,
        padding=padding,
        dropout=dropout,
    )
    # The softmax of one key is 1 whatever the scores: the gradient of positions is noise around zero there.
    assert_close(problem, dtype, ignore=("key_PD", "query_PD") if max(lengths) < 2 else ())


@pytest.mark.parametrize(
    ("lengths", "span"),
    [([100], 200), ([70, 1, 66], 40), ([66], 4)],  # a row for each distance, some for three, most in the last
    ids=str,
)
def test_long_sequences_match_reference(lengths, span, generator, assert_close):
    problem = disentangled_attention_problem(lengths, generator, heads=1, head_width=64, span=span, padding=5)
    assert_close(problem, torch.float16)


def gradients_of(problem, dtype=torch.float16):
    leaves = {name: tensor.to(dtype, copy=True).requires_grad_() for name, tensor in problem.tensors.items()}
    problem.run(**leaves, backend="triton").square().sum().backward()
    return [leaf.grad for leaf in leaves.values()]


def test_heads_a_few_at_a_time_change_nothing(generator, monkeypatch):
    problem = disentangled_attention_problem([20, 9], generator, heads=3, head_width=16, span=10)
    together = gradients_of(problem)
    monkeypatch.setattr(launches, "SCRATCH", 29 * 64 * 2)
    for one, other in zip(together, gradients_of(problem), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, *in_soak(torch.float32)])
def test_dropout_masks_of_both_passes_equal_the_torch_backends(dtype, generator, assert_close):
    problem = disentangled_attention_mask_problem([20, 70], generator, heads=1, head_width=64, span=70)  # several tiles
    assert_close(problem, dtype)


def test_a_sequence_whose_pairs_have_no_32_bit_numbers_is_refused():
    sequences = DisentangledSequences(torch.tensor([0, 2], dtype=torch.int32), 40_000)
    positions = torch.zeros(80_000, 32)  # each distance has a row of its own
    relative = RelativePositions(positions, None, torch.arange(3))
    with pytest.raises(KernelError, match=r"cannot number 40,000 tokens by 80,000 keys or positions"):
        launches.disentangled_attention_triton(torch.ones(2, 96), relative, sequences, Heads(1))
