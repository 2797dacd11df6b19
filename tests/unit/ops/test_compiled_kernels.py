"""Kernels compiled ahead of time, in a process of its own, against the cards' limits and a recorded budget.

The budget is of six cards. Compiling for them all takes minutes, which is a soak test; every run of the tests compiles
for the one whose inner loops are counted, and holds the budget of all six against their limits.
"""

import functools
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="pip install 'triton>=3.6'")

from unit.ops.inner_loop import loops, loops_of

HERE = Path(__file__).parent
# KiB a block may ask for; CUDA C++ programming guide, technical specifications by compute capability
SHARED_LIMIT_KIB = {"80": 163, "86": 99, "89": 99, "90": 227, "100": 227, "120": 99}
REGISTERS_PER_BLOCK = 65_536
ALWAYS = ("90",)
"""The card that every run of the tests compiles for."""
BUDGET = json.loads((HERE / "kernel_budget.json").read_text())

LOOP_LIMIT = {
    "attention_forward bf16 16x64 512": 15.5,
    "attention_backward bf16 16x64 512": 24.5,
    "attention_backward bf16 16x64 512 few": 24.5,
    "attention_backward bf16 16x64 128": 25.0,
}
"""Instructions an element of the scores that the prediction of benchmarks/notes.md allows."""


@functools.cache
def compiled(*options):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, str(HERE / "compiled_resources.py"), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def each(table):
    """Yield each kernel's name with its card, the card, and what the kernel takes there."""
    return ((name, card, taken) for name, cards in table.items() for card, taken in cards.items())


def over_the_limit(table):
    problems = []
    for name, card, taken in each(table):
        if taken["shared"] > SHARED_LIMIT_KIB[card] * 1024:
            problems.append(f"{name} on sm_{card}: {taken['shared']} bytes of shared memory")
        if taken["registers"] * taken["warps"] * 32 > REGISTERS_PER_BLOCK:
            problems.append(f"{name} on sm_{card}: {taken['registers']} registers x {taken['warps']} warps")
    return problems


def over_budget(table, kernels):
    problems = []
    for name, card, taken in each(table):
        needed = [taken["registers"], taken["stack"], taken["shared"]]
        *allowed, _ = kernels.get(name, {}).get(card, [0, 0, 0, None])
        if any(value > limit for value, limit in zip(needed, allowed, strict=True)):
            problems.append(f"{name} on sm_{card}: [registers, stack, shared] {needed}, budget {allowed}")
    return problems


def below_what_is_in_flight(table, kernels):
    problems = []
    for name, card, taken in each(table):
        least = kernels.get(name, {}).get(card, [0, 0, 0, None])[-1]
        if (taken["in_flight"] is None) != (least is None) or (least or 0) > (taken["in_flight"] or 0):
            problems.append(f"{name} on sm_{card}: waits with {taken['in_flight']} in flight, budget {least}")
    return problems


def waits_without_a_reason(kernels, reasons):
    return {f"{name} on sm_{card}" for name, card, taken in each(kernels) if taken[-1] == 0} ^ reasons.keys()


def over_budget_in_the_loop(table, loops):
    problems = []
    for name, loop in loops_of(table).items():
        counted, allowed = list(loop.values()), loops.get(name, [0, 0, 0])
        if any(value > limit for value, limit in zip(counted, allowed, strict=True)):
            problems.append(f"{name}: [instructions, ALU, HMMA] {counted}, budget {allowed}")
    return problems


def over_budget_in_cycles(table, budget):
    problems = []
    for name, card, taken in each(table):
        simulated, allowed = taken.get("cycles", [0, 0]), budget.get(name, {}).get(card, [0, 0])
        if any(value > limit for value, limit in zip(simulated, allowed, strict=True)):
            problems.append(f"{name} on sm_{card}: [clocks of a pass, of a tile] {simulated}, budget {allowed}")
    return problems


CARDS = pytest.mark.parametrize(
    "cards", [pytest.param(ALWAYS, id="one"), pytest.param(tuple(SHARED_LIMIT_KIB), id="six", marks=pytest.mark.soak)]
)


@CARDS
def test_kernels_keep_to_each_cards_limit_without_spills(cards):
    table = compiled("--cards", ",".join(cards))
    assert {card for _, card, _ in each(table)} == set(cards)
    assert over_the_limit(table) == []
    assert [name for name, _, taken in each(table) if taken["stack"]] == []


@CARDS
def test_kernels_keep_to_their_budget(cards):
    if (installed := version("triton")) != BUDGET["triton"]:
        pytest.skip(f"the budget is of another triton than {installed}: pip install triton=={BUDGET['triton']}")
    table = compiled("--cards", ",".join(cards))
    assert loops_of(table).keys() == BUDGET["loops"].keys()
    assert over_budget_in_the_loop(table, BUDGET["loops"]) == []
    assert over_budget(table, BUDGET["kernels"]) == []
    assert below_what_is_in_flight(table, BUDGET["kernels"]) == []
    assert over_budget_in_cycles(table, BUDGET["cycles"]) == []


def test_numbers_in_8_bits_are_rounded_by_the_cards_instruction_where_there_is_one():
    table = compiled("--cards", ",".join(ALWAYS))
    # Each writes two numbers of those that a thread has. On sm_89 Triton goes through float16: exact for bfloat16.
    casts = {name: taken["casts"] for name, _, taken in each(table) if taken["casts"]}
    assert {name.split()[0]: number for name, number in casts.items()} == {
        "row_cast": 16,
        "layer_norm_forward": 16,
        "layer_norm_backward": 4,
        "bias_gelu_forward": 8,
        "bias_gelu_backward": 8,
        "gated_gelu_forward": 8,
        "gated_gelu_backward": 16,
    }
    assert {name for name in casts if not name.endswith("fp8")} == set()


def test_budget_admits_no_spill_on_any_card_and_no_more_shared_memory_than_it_has():
    kernels = BUDGET["kernels"]
    assert {card for _, card, _ in each(kernels)} == set(SHARED_LIMIT_KIB)
    assert [name for name, _, (_, stack, *_) in each(kernels) if stack] == []
    assert [name for name, card, (_, _, shared, _) in each(kernels) if shared > SHARED_LIMIT_KIB[card] * 1024] == []
    assert not [name for name, cards in kernels.items() if name.endswith("fp8") and {"80", "86"} & cards.keys()]


def test_a_loop_that_waits_with_nothing_in_flight_has_a_reason():
    assert waits_without_a_reason(BUDGET["kernels"], BUDGET["waits with nothing in flight"]) == set()


@pytest.mark.soak
@pytest.mark.parametrize("stages", [1, 2])
def test_fewer_stages_are_seen(stages):
    table = compiled("--cards", "90", "--only", "rotary", "--stages", str(stages))
    problems = below_what_is_in_flight(table, BUDGET["kernels"])
    assert len(problems) == sum(cards["90"]["in_flight"] is not None for cards in table.values()) == 6
    assert all("waits with 0 in flight" in problem for problem in problems)
    assert len(over_budget_in_cycles(table, BUDGET["cycles"])) == 6


def test_budget_of_inner_loops_is_within_what_was_predicted():
    loops = BUDGET["loops"]
    assert {name: loops[name] for name, limit in LOOP_LIMIT.items() if loops[name][0] > limit} == {}
    # Tiles of fewer than 64 rows would run on the matrix instructions of older cards, at half the rate.
    assert {name: loop for name, loop in loops.items() if loop[2]} == {}


def test_checks_see_what_is_over():
    loop = {"issued": 22.5, "alu": 11.0, "hmma": 0}
    assert over_budget_in_the_loop({"probe": {"90": {"loop": loop}}}, {"probe": [22.4, 11.0, 0]})
    assert over_budget_in_the_loop({"probe": {"90": {"loop": loop}}}, {"probe": [22.5, 11.0, 0]}) == []
    taken = {"registers": 200, "stack": 8, "shared": 100 * 1024, "warps": 16, "in_flight": 2}
    assert len(over_the_limit({"probe": {"86": taken}})) == 2
    assert over_the_limit({"probe": {"90": taken | {"registers": 128}}}) == []
    assert over_budget({"probe": {"86": taken}}, {"probe": {"86": [200, 0, 102_400, 2]}})
    assert below_what_is_in_flight({"probe": {"86": taken}}, {"probe": {"86": [200, 0, 102_400, 3]}})
    assert below_what_is_in_flight({"probe": {"86": taken}}, {"probe": {"86": [200, 0, 102_400, 2]}}) == []
    assert waits_without_a_reason({"probe": {"86": [200, 0, 102_400, 0]}}, {}) == {"probe on sm_86"}
    assert over_budget_in_cycles({"probe": {"90": {"cycles": [900, 501]}}}, {"probe": {"90": [900, 500]}})
    assert over_budget_in_cycles({"probe": {"90": {"cycles": [900, 500]}}}, {"probe": {"90": [900, 500]}}) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_kernels_of_every_dtype_and_shape_keep_to_each_cards_limit_without_spills():
    table = compiled("--all")
    assert over_the_limit(table) == []
    # fp32 products have no tensor cores and serve checks only: there a spill is slow, not wrong. 8 bytes are the
    # return address of the exact square root's rare path.
    spilled = {f"{name} on sm_{card}: {taken['stack']}" for name, card, taken in each(table) if taken["stack"] > 8}
    assert not [name for name in spilled if not ("attention" in name and " f32 " in name)]


def test_loops_are_what_a_branch_backwards_encloses():
    program = [(0, "MOV", ""), (16, "HGMMA", ""), (32, "FADD", ""), (48, "BRA", " 0x20"), (64, "BRA", " 0x10")]
    assert loops([*program, (80, "BRA", " 0x100")]) == [["FADD", "BRA"], ["HGMMA", "FADD", "BRA", "BRA"]]
