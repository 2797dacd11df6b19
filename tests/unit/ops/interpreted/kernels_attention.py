"""Attention kernels in the interpreter: values, gradients and masks of short, long, empty and padded sequences."""

import pytest
import torch
from support.soak import in_soak

from megabert.foundation.errors import KernelError
from megabert.ops.proof.exact_problems import attention_mask_problem
from megabert.ops.proof.problems import attention_problem, disentangled_attention_problem
from megabert.ops.triton_support.tile_sizes import attention_tiles

SPAN = {"span": 10}
ONE, ODD, EMPTY = ([1], 0), ([5, 37, 1, 33], 3), ([9, 0, 4, 0], 70)
HEADS = (
    (2, 64, 0.1, torch.float16),
    (2, 64, 0.0, torch.float32),
    (3, 32, 0.1, torch.float32),
    (3, 32, 0.0, torch.float16),
    (1, 24, 0.1, torch.float16),
    (1, 128, 0.1, torch.float16),
)
ALWAYS = [(ONE, *HEADS[4]), (ODD, *HEADS[0]), (EMPTY, *HEADS[1]), (EMPTY, *HEADS[5])]


@pytest.mark.parametrize(
    ("packed", "heads", "head_width", "dropout", "dtype"),
    [*ALWAYS, *in_soak(*((packed, *heads) for packed in (ONE, ODD, EMPTY) for heads in HEADS))],
    ids=str,
)
def test_attention_matches_reference(packed, heads, head_width, dropout, dtype, generator, assert_close):
    lengths, padding = packed
    problem = attention_problem(
        lengths, generator, heads=heads, head_width=head_width, padding=padding, dropout=dropout
    )
    # the softmax of one key is 1 whatever the scores: its gradient is noise around zero, but for the values'
    assert_close(problem, dtype)


@pytest.mark.parametrize("lengths", [[128, 61], [70, 1, 131], *in_soak([200, 0, 300], [512, 256])], ids=str)
def test_attention_of_long_sequences_matches_reference(lengths, generator, assert_close, monkeypatch):
    problem = attention_problem(lengths, generator, heads=1, head_width=64, padding=5)
    is_whole = attention_tiles((9, 0), head_width=64, max_seqlen=max(lengths), itemsize=2).is_whole
    assert is_whole == (max(lengths) <= 128)
    monkeypatch.setattr("megabert.ops.attention.dense.triton.fills_card", lambda programs, device: lengths[0] > 128)
    assert_close(problem, torch.float16)


def gradient_of(problem, dtype=torch.float32):
    qkv = problem.tensors["qkv_TC"].to(dtype, copy=True).requires_grad_()
    problem.run(qkv_TC=qkv, backend="triton").square().sum().backward()
    return qkv.grad


@pytest.mark.parametrize("capability", [(8, 6), (9, 0)], ids=["reads", "memory adds"])
def test_one_program_a_head_sums_as_one_program_a_tile_bit_for_bit(capability, generator, monkeypatch):
    monkeypatch.setattr("megabert.ops.attention.dense.triton.capability_of", lambda _: capability)
    problem = attention_problem([9, 260], generator, heads=1, head_width=64)  # three tiles
    gradients = []
    for is_running in (True, False):
        monkeypatch.setattr("megabert.ops.attention.dense.triton.fills_card", lambda *_, value=is_running: value)
        gradients.append(gradient_of(problem, torch.float16))
    assert torch.equal(*gradients)


BOTH = pytest.mark.parametrize(("problem_of", "own"), [(attention_problem, {}), (disentangled_attention_problem, SPAN)])


@BOTH
def test_scores_far_below_zero_make_no_infinity(problem_of, own, generator, assert_close):
    # every lse is below -500: 2^(0 - lse) of a key or query of zeros, past the end, would be infinite
    problem = problem_of([37, 5], generator, heads=1, head_width=64, padding=3, **own)
    queries, keys, _ = problem.tensors["qkv_TC"].view(-1, 3, 64).unbind(1)
    queries += 10
    keys -= 10
    assert_close(problem, torch.float16)


@pytest.mark.parametrize(
    ("is_running", "dtype"),
    [(False, torch.float16), (True, torch.float32), *in_soak((False, torch.float32), (True, torch.float16))],
)
def test_dropout_masks_of_both_passes_equal_the_torch_backends(is_running, dtype, generator, assert_close, monkeypatch):
    monkeypatch.setattr("megabert.ops.attention.dense.triton.fills_card", lambda *_: is_running)
    problem = attention_mask_problem([30, 90], generator, heads=2, head_width=64)  # of several tiles
    assert_close(problem, dtype)


@BOTH
def test_too_wide_heads_are_refused(problem_of, own, generator):
    problem = problem_of([2], generator, heads=1, head_width=256, **own)
    with pytest.raises(KernelError, match="heads are 256 wide"):
        problem.run(**problem.tensors, backend="triton")
