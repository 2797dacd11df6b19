"""Kernels of attention with rotary positions in the interpreter: windows, bases, packings and masks against float64."""

import pytest
import torch
from support.soak import in_soak

from megabert.foundation.errors import KernelError
from megabert.ops.proof.exact_problems import rotary_attention_mask_problem
from megabert.ops.proof.problems import rotary_attention_problem
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
        (1, 32, 2, 0.1, torch.float32, ([3], 140)),  # padding longer than a tile, after a sequence that ends inside one
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


@pytest.mark.parametrize(
    ("reach", "dtype"),
    [(None, torch.float16), (20, torch.float32), *in_soak((None, torch.float32), (20, torch.float16))],
)
def test_dropout_masks_are_attentions_wherever_a_key_is_seen(reach, dtype, generator, assert_close):
    problem = rotary_attention_mask_problem([20, 44], generator, heads=1, head_width=64, reach=reach)  # several tiles
    assert_close(problem, dtype)


def test_too_wide_heads_are_refused(generator, assert_close):
    with pytest.raises(KernelError, match="heads are 256 wide"):
        assert_close(rotary_attention_problem([2], generator, heads=1, head_width=256, reach=1), torch.float16)
