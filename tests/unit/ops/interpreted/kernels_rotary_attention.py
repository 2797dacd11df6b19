"""Kernels of attention with rotary positions in the interpreter: windows, bases, packings and masks against float64."""

import pytest
import torch
from support.soak import in_soak

from megabert.foundation.errors import KernelError
from megabert.ops.attention.rotary.api import plan_rotary_attention, turns_of
from megabert.ops.attention.rotary.triton import rotary_attention_triton
from megabert.ops.dropout import Heads
from megabert.ops.proof.exact_problems import rotary_attention_mask_problem
from megabert.ops.proof.inputs import boundaries, packed_positions
from megabert.ops.proof.problem import relative_error
from megabert.ops.proof.problems import attention_problem, rotary_attention_problem
from megabert.ops.triton_support import tile_sizes

ODD, EMPTY = ([5, 37, 1], 3), ([9, 0, 4, 0], 40)


@pytest.mark.parametrize(
    ("heads", "head_width", "reach", "dropout", "dtype", "packed"),
    [
        (1, 64, 16, 0.1, torch.float16, ODD),
        (1, 16, None, 0.0, torch.float32, ODD),
        (1, 64, 40, 0.0, torch.float32, EMPTY),
        (3, 24, 5, 0.1, torch.float16, EMPTY),
        (1, 128, 20, 0.1, torch.float16, EMPTY),
        (1, 64, 64, 0.1, torch.float16, ([1], 0)),
        (1, 64, None, 0.1, torch.float16, ([0, 0], 5)),
        *in_soak((2, 64, None, 0.1, torch.float16, ODD), (1, 32, 3, 0.1, torch.float32, ODD)),
    ],
    ids=str,
)
def test_rotary_attention_matches_reference(heads, head_width, reach, dropout, dtype, packed, generator, assert_close):
    lengths, padding = packed
    problem = rotary_attention_problem(
        lengths, generator, heads=heads, head_width=head_width, reach=reach, padding=padding, dropout=dropout
    )
    assert_close(problem, dtype)


@pytest.mark.parametrize(
    ("lengths", "reach", "base"),
    [
        ([200], 64, 10_000.0),  # several tiles of queries and keys, some of them outside of the window
        ([70, 66, 1], 200, 10_000.0),  # a window longer than the sequence
        ([150, 66], None, 160_000.0),
    ],
    ids=str,
)
def test_long_sequences_match_reference(lengths, reach, base, generator, assert_close):
    problem = rotary_attention_problem(lengths, generator, heads=1, head_width=64, reach=reach, base=base, padding=5)
    assert_close(problem, torch.float16)


@pytest.mark.parametrize("head_width", [64, 128])  # which have tiles of their own
def test_cards_that_turn_before_match_reference(head_width, generator, assert_close, monkeypatch):
    monkeypatch.setattr(tile_sizes, "TURNING", ())
    assert_close(rotary_attention_problem([70, 9], generator, heads=1, head_width=head_width, reach=20), torch.float16)


def test_padding_of_other_tiles_is_zero(generator):
    # Padding longer than a tile, and after a sequence that ends inside of one.
    problem = rotary_attention_problem([3], generator, heads=1, head_width=32, reach=2, padding=140)
    qkv = problem.tensors["qkv_TC"].requires_grad_()
    out = problem.run(qkv_TC=qkv, backend="triton")
    out.sum().backward()
    assert not out[3:].any()
    assert not qkv.grad[3:].any()


def test_positions_do_not_matter_without_turns(generator):
    """An angle of 0 everywhere leaves attention as it is without rotary positions."""
    problem = attention_problem([70, 5], generator, heads=1, head_width=64, padding=3)
    qkv, options = problem.tensors["qkv_TC"], problem.run.keywords
    no_turns = turns_of(torch.zeros(70), 10_000.0, 64)
    out = run_kernels(qkv, [70, 5], Heads(1, options["dropout"]), no_turns, reach=None)
    assert relative_error(out, problem.run(qkv_TC=qkv, backend="torch")) < 1e-5


def run_kernels(qkv, lengths, heads, turns=None, *, reach):
    cu_seqlens = boundaries(lengths, qkv.device)
    sequences = plan_rotary_attention(
        cu_seqlens,
        packed_positions(lengths, len(qkv), qkv.device),
        max_seqlen=max(lengths),
        num_heads=heads.num_heads,
        reach=1,
        backend="triton",
    )
    if turns is None:
        turns = turns_of(sequences.positions_P, 10_000.0, qkv.shape[1] // 3 // heads.num_heads)
    return rotary_attention_triton(qkv, turns, sequences, heads, reach=reach)


@pytest.mark.parametrize(
    ("reach", "dtype"),
    [(None, torch.float16), (20, torch.float32), *in_soak((None, torch.float32), (20, torch.float16))],
)
def test_dropout_masks_are_attentions_wherever_a_key_is_seen(reach, dtype, generator, assert_close):
    problem = rotary_attention_mask_problem([20, 44], generator, heads=1, head_width=64, reach=reach)  # several tiles
    assert_close(problem, dtype)


def test_repeats_bit_for_bit(generator):
    problem = rotary_attention_problem([45], generator, heads=1, head_width=16, reach=20)
    gradients = []
    for _ in range(2):
        qkv = problem.tensors["qkv_TC"].clone().requires_grad_()
        problem.run(qkv_TC=qkv, backend="triton").square().sum().backward()
        gradients.append(qkv.grad)
    assert torch.equal(*gradients)


def test_too_wide_heads_are_refused():
    with pytest.raises(KernelError, match="heads are 256 wide"):
        run_kernels(torch.ones(2, 768), [2], Heads(1), reach=1)
