"""Dropout kernels in the interpreter: the same row keys and masks as torch, bit for bit."""

import pytest
import torch

from megabert.ops.dropout import Dropout, dropped_torch, row_keys_torch
from megabert.ops.triton_support.dropout_kernels import dropped_triton, row_keys_triton


@pytest.mark.parametrize("tokens", [0, 1, 1500])
def test_row_keys_equal_torchs(tokens):
    seeds, constant = torch.randint(-(2**31), 2**31, (tokens,)).int(), -123_456_789
    assert torch.equal(row_keys_triton(seeds, constant), row_keys_torch(seeds, constant))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (19, 301), (0, 8)])
def test_dropout_equals_torchs(shape, dtype):
    site = Dropout(0.3, torch.randint(-(2**31), 2**31, shape[:1]).int())
    x = torch.randn(shape).to(dtype)
    ours, theirs = dropped_triton(x, site), dropped_torch(x, site)
    assert torch.equal(ours == 0, theirs == 0)
    torch.testing.assert_close(ours, theirs)
