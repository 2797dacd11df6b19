"""DeBERTa's attention against the formula of the paper, written out for one sequence and head at a time."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from unit.ops.attention.test_dense_attention import LENGTHS, TOLERANCE, site_of

from megabert.foundation.errors import KernelError
from megabert.ops.attention.disentangled.api import disentangled_attention
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions, plan_groups
from megabert.ops.attention.disentangled.reference import disentangled_attention_reference
from megabert.ops.dropout import Heads, probability_mask
from megabert.ops.proof.problem import relative_error
from megabert.ops.sequences import padded_groups

HEADS, WIDTH, SPAN = 2, 6, 9


def definition(qkv_TC, key_PD, query_PD, position_E, *, cu_seqlens, dropout):
    """Return the formula of He et al. 2021, equation 4, one pair of tokens and one head at a time, as matrices."""
    out = torch.zeros(len(qkv_TC), HEADS * WIDTH, dtype=qkv_TC.dtype)
    longest = (len(position_E) + 1) // 2
    kinds = 1 + (key_PD is not None) + (query_PD is not None)
    for number, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        index = torch.arange(end - start)
        position_SS = position_E[index[:, None] - index + longest - 1]
        for head in range(HEADS):
            part = slice(head * WIDTH, (head + 1) * WIDTH)
            q, k, v = (x[start:end, part] for x in qkv_TC.chunk(3, 1))
            scores = q @ k.T
            if key_PD is not None:
                scores = scores + (q[:, None] * key_PD[:, part][position_SS]).sum(-1)
            if query_PD is not None:
                scores = scores + (k[None] * query_PD[:, part][position_SS]).sum(-1)
            weights = (scores / math.sqrt(WIDTH * kinds)).softmax(-1)
            if dropout is not None:
                key = dropout.keys_BN()[number, head : head + 1]
                weights = weights * probability_mask(dropout, key, end - start)[0] * dropout.scale
            out[start:end, part] = weights @ v
    return out


def inputs(lengths, padding, generator, dtype):
    longest = max(lengths)
    shapes = [(sum(lengths) + padding, 3 * HEADS * WIDTH), (2 * SPAN, HEADS * WIDTH), (2 * SPAN, HEADS * WIDTH)]
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    position_E = (torch.arange(1 - longest, longest) + SPAN).clamp(0, 2 * SPAN - 1)
    return tensors, position_E


def run(op, tensors, grad, kinds):
    """Return the result and the gradients of those inputs that the kinds of scores read."""
    qkv, key, query = (tensor.clone().requires_grad_() for tensor in tensors)
    read = [qkv, *([key] if "c2p" in kinds else []), *([query] if "p2c" in kinds else [])]
    out = op(qkv, key if "c2p" in kinds else None, query if "p2c" in kinds else None)
    return [out.detach(), *torch.autograd.grad(out, read, grad.to(out.dtype))]


def op_of(op, position_E, sequences, **options):
    """Return an op as a function of contents and of the keys and queries of positions."""
    return lambda qkv, key, query: op(qkv, RelativePositions(key, query, position_E), sequences, **options)


def sequences_of(layout, cu_seqlens, tokens):
    longest = int(cu_seqlens.diff().max())
    plan = plan_groups if layout == "by length" else padded_groups
    groups = plan(cu_seqlens, tokens=tokens, max_seqlen=max(1, longest), num_heads=HEADS)
    return DisentangledSequences(cu_seqlens, longest, groups)


@pytest.mark.parametrize("layout", ["by length", "padded"])
@pytest.mark.parametrize("kinds", [("c2p",), ("p2c",), ("c2p", "p2c")])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", [name for name in LENGTHS if name != "none"])
def test_scores_and_gradients_are_those_of_the_definition(name, dtype, kinds, layout, generator, boundaries):
    lengths, padding = LENGTHS[name]
    cu_seqlens, tokens = boundaries(lengths), sum(lengths) + padding
    tensors, position_E = inputs(lengths, padding, generator, dtype)
    grad = torch.randn(tokens, HEADS * WIDTH, generator=generator).to(dtype)
    dropout = site_of(cu_seqlens, tokens, HEADS)
    sequences = sequences_of(layout, cu_seqlens, tokens)
    op = op_of(disentangled_attention, position_E, sequences, num_heads=HEADS, dropout=dropout)
    reference = partial(definition, position_E=position_E, cu_seqlens=cu_seqlens, dropout=dropout)
    ours = run(op, tensors, grad, kinds)
    expected = run(reference, [tensor.double() for tensor in tensors], grad, kinds)
    for value, reference_value in zip(ours, expected, strict=True):
        assert value.dtype == dtype
        assert relative_error(value, reference_value) < TOLERANCE[dtype]
    assert ours[0][sum(lengths) :].abs().sum() == 0  # padding tokens belong to no sequence


@pytest.mark.parametrize("layout", ["by length", "padded"])
def test_without_sequences_results_and_gradients_are_zero(layout, generator, boundaries):
    cu_seqlens = boundaries([0, 0])
    tensors, position_E = inputs([1], 4, generator, torch.float32)
    op = op_of(disentangled_attention, position_E, sequences_of(layout, cu_seqlens, 5), num_heads=HEADS)
    for value in run(op, tensors, torch.ones(5, HEADS * WIDTH), ("c2p", "p2c")):
        assert torch.equal(value, torch.zeros_like(value))


@pytest.mark.parametrize("layout", ["by length", "padded"])
def test_groups_of_a_few_sequences_change_nothing(layout, boundaries, generator, monkeypatch):
    cu_seqlens = boundaries([6] * 9)
    tensors, position_E = inputs([6] * 9, 0, generator, torch.float32)
    contexts = []
    for block in (1 << 19, 200):
        monkeypatch.setattr("megabert.ops.attention.disentangled.cpu.PROBABILITIES", block)
        monkeypatch.setattr("megabert.ops.sequences.PADDED_GROUP", block)
        sequences = sequences_of(layout, cu_seqlens, 54)
        contexts.append(op_of(disentangled_attention, position_E, sequences, num_heads=HEADS)(*tensors))
    assert len(sequences.groups.shapes) == 5
    torch.testing.assert_close(*contexts)


@pytest.mark.parametrize("kinds", [(), ("c2p",), ("p2c",), ("c2p", "p2c")])
def test_reference_is_the_definition(kinds, generator, boundaries):
    cu_seqlens = boundaries([5, 1, 7])
    tensors, position_E = inputs([7], 8, generator, torch.float64)
    sequences, dropout = DisentangledSequences(cu_seqlens, 7), site_of(cu_seqlens, 15, HEADS)
    op = op_of(disentangled_attention_reference, position_E, sequences, heads=Heads(HEADS, dropout))
    formula = partial(definition, position_E=position_E, cu_seqlens=cu_seqlens, dropout=dropout)
    grad = torch.randn(15, HEADS * WIDTH, generator=generator, dtype=torch.float64)
    for value, expected in zip(run(op, tensors, grad, kinds), run(formula, tensors, grad, kinds), strict=True):
        torch.testing.assert_close(value, expected)


def test_a_backend_that_cannot_run_is_refused(boundaries, generator):
    tensors, position_E = inputs([6], 0, generator, torch.float32)
    sequences, positions = DisentangledSequences(boundaries([6]), 6), RelativePositions(*tensors[1:], position_E)
    for backend, reason in (("triton", "need a CUDA GPU"), ("apex", "no such backend")):
        with pytest.raises(KernelError, match=f"{reason}.* Choose auto or one of: torch"):
            disentangled_attention(tensors[0], positions, sequences, num_heads=HEADS, backend=backend)
