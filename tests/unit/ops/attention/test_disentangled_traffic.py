"""Bytes that DeBERTa's attention moves for one element of its scores, counted on meta tensors, and the time they leave.

A kernel is worth its while if it issues fewer instructions an element than a GPU could in the time in which plain torch
moves its bytes. The instructions are those of the inner loops that ``kernel_budget.json`` bounds.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

from triton.runtime.jit import JITFunction

from megabert.ops import backend
from megabert.ops.attention.disentangled.api import disentangled_attention, plan_disentangled_attention
from megabert.ops.attention.disentangled.cpu import RelativePositions
from megabert.ops.dropout import AttentionDropout
from megabert.ops.proof.inputs import near_positions

HEADS, WIDTH, SEQUENCES = 12, 64, 32
INSTRUCTIONS_PER_BYTE = 132 * 4 * 32 * 1.755e9 / 3.35e12
"""Rates of an H100 SXM: four schedulers on each of 132 multiprocessors at 1,755 MHz, and 3.35 TB/s."""
BUDGET = Path(__file__).parents[1] / "kernel_budget.json"
SUMS_OF_DISTANCES = 2 * 2 * 12.9
"""Instructions an element of both launches of ``sum_distances``: 12.9 in a turn of its loop on sm_90, and at 512 tokens
twice as many turns as elements, because a program of 128 positions turns as often as its longest run has distances."""


class Moved(TorchDispatchMode):
    """Adds up the bytes of all that torch's own operations read and write."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        inputs, results = (
            [one for one in tree_leaves(some) if isinstance(one, torch.Tensor)] for some in (args, result)
        )
        name = function._schema.name
        known = {one.untyped_storage()._cdata for one in inputs}
        is_view = all(one.untyped_storage()._cdata in known for one in results) and not name.endswith("_")
        if not is_view and not name.startswith(("aten::empty", "aten::new_empty")):
            self.bytes += sum(one.nbytes for one in (*inputs, *results))
        return result


def moved_per_element(length, chosen, monkeypatch) -> tuple[float, float]:
    """Return the bytes of the forward and of the backward pass, divided by the elements of the scores."""
    moved = Moved()

    def launch(kernel, *arguments, grid, warmup, **options):
        moved.bytes += sum(one.nbytes for one in arguments if isinstance(one, torch.Tensor))

    monkeypatch.setattr(JITFunction, "run", launch)
    monkeypatch.setattr(backend, "os", SimpleNamespace(environ={"TRITON_INTERPRET": "1"}))
    backend.choose.cache_clear()
    tokens, rows = SEQUENCES * length, int(near_positions(length, 256)[-1]) + 1
    with torch.device("meta"):
        shapes = ((tokens, 3 * HEADS * WIDTH), (rows, HEADS * WIDTH), (rows, HEADS * WIDTH))
        qkv, key, query = (torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes)
        seeds, constants = (torch.empty(size, dtype=torch.int32) for size in (SEQUENCES, HEADS))
        positions = RelativePositions(key, query, torch.empty(2 * length - 1, dtype=torch.int32))
        sizes = {"tokens": tokens, "max_seqlen": length, "num_heads": HEADS, "backend": chosen}
        sequences = plan_disentangled_attention(torch.empty(SEQUENCES + 1, dtype=torch.int32), **sizes)
        site = AttentionDropout(0.1, seeds, constants)
        with moved:
            out = disentangled_attention(qkv, positions, sequences, num_heads=HEADS, dropout=site, backend=chosen)
            forward = moved.bytes
            torch.autograd.grad(out, (qkv, key, query), torch.empty_like(out))
    backend.choose.cache_clear()
    elements = tokens * length * HEADS
    return forward / elements, (moved.bytes - forward) / elements


@pytest.mark.parametrize("length", [128, 512])
def test_kernels_issue_less_than_eager_has_time_for(length, monkeypatch):
    loops = json.loads(BUDGET.read_text())["loops"]
    forward = loops["disentangled_attention_forward bf16 12x64"][0]
    backward = sum(loops[f"disentangled_attention_backward_{of} bf16 12x64"][0] for of in ("keys", "queries"))
    eager, ours = (moved_per_element(length, chosen, monkeypatch) for chosen in ("torch", "triton"))
    for issued, bytes_of_eager in zip((forward, backward + SUMS_OF_DISTANCES), eager, strict=True):
        assert issued < bytes_of_eager * INSTRUCTIONS_PER_BYTE
    # Products with positions and gradients of scores go through memory; probabilities and masks do not.
    assert ours[0] < eager[0] / 4
    assert ours[1] < eager[1] / 2
