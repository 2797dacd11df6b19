"""DeBERTa's attention against the formula of the paper, written out for one sequence and head at a time."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from unit.ops.attention.test_dense_attention import LENGTHS, TOLERANCE

from megabert.foundation.errors import KernelError
from megabert.ops.attention.disentangled.api import disentangled_attention
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions, plan_groups
from megabert.ops.dropout import probability_mask
from megabert.ops.proof.inputs import PackedHeads
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


class Case:
    """Random contents and positions of packed sequences, both layouts of plain torch, and the op on them."""

    def __init__(self, lengths, padding, generator, dtype=torch.float32):
        packed = PackedHeads(lengths, generator, heads=HEADS, head_width=WIDTH, padding=padding)
        self.cu_seqlens, self.options, self.longest = packed.cu_seqlens, packed.options, max(1, packed.longest)
        shapes = (packed.shapes["qkv_TC"], (2 * SPAN, HEADS * WIDTH), (2 * SPAN, HEADS * WIDTH))
        self.tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        self.grad = torch.randn(packed.tokens, HEADS * WIDTH, generator=generator).to(dtype)
        self.position_E = (torch.arange(1 - self.longest, self.longest) + SPAN).clamp(0, 2 * SPAN - 1)

    def op(self, qkv, key, query, *, layout="by length", **more):
        plan = plan_groups if layout == "by length" else padded_groups
        groups = plan(self.cu_seqlens, tokens=len(qkv), max_seqlen=self.longest, num_heads=HEADS)
        sequences = DisentangledSequences(self.cu_seqlens, self.longest, groups)
        positions = RelativePositions(key, query, self.position_E)
        return disentangled_attention(qkv, positions, sequences, **self.options, **more)

    def run(self, op, kinds, dtype):
        """Return the result and the gradients of those inputs that the kinds of scores read."""
        qkv, key, query = (tensor.to(dtype, copy=True).requires_grad_() for tensor in self.tensors)
        read = [qkv, *([key] if "c2p" in kinds else []), *([query] if "p2c" in kinds else [])]
        out = op(qkv, key if "c2p" in kinds else None, query if "p2c" in kinds else None)
        return [out.detach(), *torch.autograd.grad(out, read, self.grad.to(dtype))]


@pytest.mark.parametrize("layout", ["by length", "padded"])
@pytest.mark.parametrize("kinds", [(), ("c2p",), ("p2c",), ("c2p", "p2c")])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("lengths", "padding"), LENGTHS.values(), ids=LENGTHS)
def test_scores_and_gradients_are_those_of_the_definition(lengths, padding, dtype, kinds, layout, generator):
    case = Case(lengths, padding, generator, dtype)
    formula = partial(
        definition, position_E=case.position_E, cu_seqlens=case.cu_seqlens, dropout=case.options["dropout"]
    )
    ours, expected = case.run(partial(case.op, layout=layout), kinds, dtype), case.run(formula, kinds, torch.float64)
    for value, reference_value in zip(ours, expected, strict=True):
        assert value.dtype == dtype
        assert relative_error(value, reference_value) < TOLERANCE[dtype]
    assert ours[0][sum(lengths) :].abs().sum() == 0  # padding tokens belong to no sequence


@pytest.mark.parametrize("layout", ["by length", "padded"])
def test_groups_of_a_few_sequences_change_nothing(layout, generator, monkeypatch):
    case, contexts = Case([6] * 9, 0, generator), []
    for block in (1 << 19, 200):
        monkeypatch.setattr("megabert.ops.attention.disentangled.cpu.PROBABILITIES", block)
        monkeypatch.setattr("megabert.ops.sequences.PADDED_GROUP", block)
        contexts.append(case.op(*case.tensors, layout=layout))
    torch.testing.assert_close(*contexts)


def test_a_backend_that_cannot_run_is_refused(generator):
    case = Case([6], 0, generator)
    for backend, reason in (("triton", "need a CUDA GPU"), ("apex", "no such backend")):
        with pytest.raises(KernelError, match=f"{reason}.* Choose auto or one of: torch"):
            case.op(*case.tensors, backend=backend)
