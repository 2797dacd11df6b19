"""What a step of pre-training does on a GPU: the host waits once, nothing is copied in its way, and nothing races.

Families run on two ranks at ZeRO-1: their parameters decide what the buckets hold and when hooks send them. At ZeRO-2
a pair of models runs, and on one rank, where nothing is sent, BERT. ``make soak`` runs every row.
"""

import pytest
import torch
from fake_cuda.fake_gpu import ALIKE, BATCH_TENSORS, FAMILIES, KEPT
from fake_cuda.fake_step import MICRO_STEPS, steps
from fake_cuda.watch import Seen
from support.soak import in_soak
from torch._subclasses.fake_tensor import DataDependentOutputException

from megabert.data import batch
from megabert.engine import engine, gradient_reduction, zero_stages
from megabert.models import bert, layers

LAUNCHES = {"bert": 46, "roberta": 44, "albert": 39, "electra": 83, "deberta": 50, "deberta-v3": 106, "modernbert": 35}
"""Most launches of Triton's kernels in a micro-step of two layers, without the optimizer's: what they are today."""


ONE = (16, 5)
CASTS = {"bert": ONE, "roberta": ONE, "albert": (8, 5), "electra": (32, 10), "modernbert": ONE}
CASTS |= {"deberta": (24, 13), "deberta-v3": (32, 18)}
"""Casts to 8 bits by a kernel of their own, per update and per micro-step of two layers, or of two models of them.

In an update each weight and its transpose are cast. In a micro-step it is the embeddings, and in each layer attention's
output and the gradients of queries, keys and values; with DeBERTa positions and their gradients as well. LayerNorm and
GELU cast all other factors.
"""


def check(seen: Seen, world_size: int, family: str = "bert", *, has_hooks: bool = True) -> None:
    assert dict(seen.faults) == {}
    assert seen.copies_to_host == 1
    assert seen.launches_before_waits == [seen.kernels.total()], "a kernel is launched only after the host has waited"
    assert seen.stream_waits == (world_size > 1)
    assert dict(seen.async_copies) == {"copy from the host": BATCH_TENSORS * MICRO_STEPS}
    assert len(seen.hook_threads) == has_hooks, "hooks of two threads would race for the same counters"
    attention = {
        "deberta": "disentangled_attention_forward",
        "deberta-v3": "disentangled_attention_forward",
        "modernbert": "rotary_attention_forward",
    }
    assert seen.kernels[attention.get(family, "attention_forward")]


def launches_per_micro_step(seen: Seen) -> float:
    return sum(number for name, number in seen.kernels.items() if not name.startswith("lamb")) / MICRO_STEPS


@pytest.mark.parametrize(
    ("family", "stage", "world_size", "tokens"),
    [
        ("bert", 1, 1, 512),
        *((family, 1, 2, 1024) for family in KEPT),
        ("deberta-v3", 2, 2, 8192),  # which sums have an order may depend on the number of tokens
        *in_soak(*((family, 1, 2, 1024) for family in ALIKE), ("albert", 2, 2, 1024)),
        *in_soak(*((family, 1, 1, 8192) for family in FAMILIES), ("deberta-v3", 1, 1, 512), ("modernbert", 1, 1, 512)),
    ],
)
def test_second_step_waits_once_and_nothing_races(family, stage, world_size, tokens):
    (first, second), _ = steps(family=family, stage=stage, world_size=world_size, tokens=tokens)
    check(second, world_size, family)
    assert second.kernels == first.kernels
    assert second.collectives["gather"] >= (world_size > 1)
    assert launches_per_micro_step(second) <= LAUNCHES[family]


@pytest.mark.parametrize(
    ("stage", "dtype", "world_size", "optimizer"),
    [
        (1, torch.bfloat16, 2, "muon"),
        (2, torch.bfloat16, 2, "adamw"),
        (1, torch.float32, 2, "lamb"),
        *in_soak(
            (1, torch.bfloat16, 2, "stable_adamw"),
            (1, torch.bfloat16, 1, "adamw"),
            (1, torch.bfloat16, 2, "adamw"),
            (1, torch.bfloat16, 1, "muon"),
            (2, torch.bfloat16, 1, "lamb"),
            (2, torch.float32, 2, "lamb"),
        ),
    ],
    ids=str,
)
def test_other_engines_wait_once_too(stage, dtype, world_size, optimizer):
    seen, _ = steps(stage=stage, dtype=dtype, world_size=world_size, optimizer=optimizer)
    check(seen[1], world_size)


@pytest.mark.parametrize("family", ["bert", *in_soak("albert", "deberta-v3", "modernbert", *ALIKE)])
def test_products_in_8_bits_wait_once_too_and_their_sums_have_an_order(monkeypatch, family):
    products, multiply = [], torch._scaled_mm

    def counted(left, right, **options):
        products.append((left.dtype, left.shape, right.shape))
        return multiply(left, right, **options)  # torch checks shapes and strides as on a GPU

    monkeypatch.setattr(torch, "_scaled_mm", counted)
    seen, _ = steps(family=family, in_fp8=True, number=2, tokens=1000)
    check(seen[1], 1, family)
    assert len(products) >= 2 * MICRO_STEPS * 2 * 8, "two steps of two layers, eight products in each"
    assert seen[1].kernels == seen[0].kernels
    in_update, in_micro_step = CASTS[family]
    assert seen[1].kernels["row_cast"] == in_update + MICRO_STEPS * in_micro_step


@pytest.mark.parametrize("world_size", [2, *in_soak(1)])
def test_step_without_shards_waits_once_too(world_size):
    seen, _ = steps(stage=0, dtype=torch.float32, world_size=world_size)
    check(seen[1], world_size, has_hooks=False)
    assert seen[1].collectives["all_reduce"] == (world_size > 1)


def faults_with(monkeypatch, owner, name, function, **options) -> set[str]:
    monkeypatch.setattr(owner, name, function)
    return set(steps(**options)[0][1].faults)


def test_a_read_before_the_weights_have_arrived_is_seen(monkeypatch):
    def forget(self, needed):
        for key in needed & set(self._under_way):
            del self._under_way[key]

    found = faults_with(monkeypatch, zero_stages.WeightGathering, "_wait_for", forget, world_size=2)
    assert "read while a collective writes it: embedding" in found


@pytest.mark.soak
def test_a_use_of_gradients_before_they_are_summed_is_seen(monkeypatch):
    def finish(self):
        while self._next >= 0:
            self._send_next()
        self._works.clear()
        return [bucket.gradient_sum for bucket in self._buckets]

    found = faults_with(monkeypatch, gradient_reduction.StepReduction, "finish", finish, world_size=2)
    assert any("while a collective writes it" in fault for fault in found)


def do_before_an_update(monkeypatch, do) -> None:
    """Have the engine do something with a step's totals before it updates the weights."""
    scale = engine.Engine._gradient_scale

    def done(self, totals, multiple):
        do(totals)
        return scale(self, totals, multiple)

    monkeypatch.setattr(engine.Engine, "_gradient_scale", done)


def test_a_number_that_the_host_reads_is_seen(monkeypatch):
    do_before_an_update(monkeypatch, lambda totals: float(totals[-1]))
    with pytest.raises(DataDependentOutputException, match="_local_scalar_dense"):
        steps()


def test_a_copy_that_the_host_waits_for_is_seen(monkeypatch):
    first_tokens = bert.first_tokens

    def copied(batch):
        return first_tokens(batch) + torch.zeros(1, dtype=torch.int64).to("cuda")

    assert faults_with(monkeypatch, bert, "first_tokens", copied) == {"blocking copy from the host"}


@pytest.mark.soak
def test_a_copy_from_memory_that_is_not_page_locked_is_seen(monkeypatch):
    def sent(device, tensor):
        return tensor.to(device, non_blocking=True)

    assert faults_with(monkeypatch, batch, "sent_to", sent) == {"copy from memory that is not page-locked"}


def test_a_sum_without_an_order_is_seen(monkeypatch):
    do_before_an_update(monkeypatch, lambda totals: totals.scatter_add(0, torch.zeros_like(totals).long(), totals))
    assert set(steps()[0][1].faults) == {"sums in any order: scatter_add"}


@pytest.mark.parametrize("family", ["bert", *in_soak("deberta", "electra")])
def test_a_layer_norm_that_is_launched_twice_is_seen(monkeypatch, family):
    forward = layers.LayerNorm.forward
    monkeypatch.setattr(layers.LayerNorm, "forward", lambda norm, *given: forward(norm, forward(norm, *given)))
    assert launches_per_micro_step(steps(family=family)[0][1]) > LAUNCHES[family]
