"""Seconds of counted work on a card.

Products run at the mean rate of the twelve shapes; everything else at a share of the memory's copy rate. Attention
needs the longer of that and the cycles that are simulated from its machine code, waits for memory included
(``tests/unit/ops/simulated_cycles.py``).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.predictions.counts import FLOPS_PER_ELEMENT, IN_FP8, Label, Work

SHARES = {"layer_norm_backward": 0.82, "bias_gelu_backward": 0.85, "gated_gelu_backward": 0.85, "lamb_update": 0.85}
USUAL_SHARE = 0.9
"""Shares of the copy rate, by the reasons in notes.md. Assumed until a card has shown them."""
LAUNCH_S = 1e-6
"""Gap between two kernels."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU, by rates that are assumed until they are measured."""

    capability: tuple[int, int]
    multiprocessors: int
    clock_ghz: float
    copy_gb_s: float
    """Bytes read and written per second of a large copy."""
    product_tflops: tuple[float, float, float]
    """Mean rate of the twelve products in bfloat16: expected, lowest, highest."""
    sources: str
    fp8_tflops: tuple[float, float, float] | None = None
    """Likewise of the eight in 8 bits, with a scale per row and exact sums; None: the card has none."""


HOPPER_FP8 = (1050, 820, 1220)
"""In bursts with fast sums the eight took 1,310 TFLOP/s, 1.76 times bfloat16's (../gpu/results/h100.md); at the limit
of power that is 1,120 to 1,220. Exact sums are taken to cost a tenth, at worst 30%: nobody measured them."""
CARDS = {
    "H200": Card(
        capability=(9, 0),
        multiprocessors=132,
        clock_ghz=1.76,
        copy_gb_s=4300,
        product_tflops=(670, 620, 720),
        sources="copy: the H100's share of its datasheet (90%); products: the H100's",
        fp8_tflops=HOPPER_FP8,
    ),
    "H100": Card(
        capability=(9, 0),
        multiprocessors=132,
        clock_ghz=1.76,
        copy_gb_s=3000,
        product_tflops=(670, 620, 720),
        sources="copy and large product read on one card, with nothing of ours",
        fp8_tflops=HOPPER_FP8,
    ),
    "A100": Card(
        capability=(8, 0),
        multiprocessors=108,
        clock_ghz=1.41,
        copy_gb_s=1830,
        product_tflops=(235, 215, 255),
        sources="copy: 90% of the datasheet; products: 75% of the peak, a large one 85%",
    ),
}
Cycles = Mapping[str, tuple[int, int]]
"""Clocks of a multiprocessor by kernel and kind of loop: of a pass but for its tiles, and of a tile."""


def seconds(label: Label, work: Work, card: Card, *, cycles: Cycles, rate: float, fp8_rate: float) -> float:
    """Return the seconds of one kernel's work.

    Args:
        label: Which kernel.
        work: Its work.
        card: The card.
        cycles: Clocks of attention's kernels.
        rate: TFLOP/s of products.
        fp8_rate: TFLOP/s of those in 8 bits.
    """
    gaps_s = work.launches * LAUNCH_S
    if work.flops and label.name not in FLOPS_PER_ELEMENT:
        return work.flops / (fp8_rate if label.name == IN_FP8 else rate) / 1e12 + gaps_s
    memory_s = work.bytes / (card.copy_gb_s * 1e9 * SHARES.get(label.name, USUAL_SHARE))
    if not label.loop:
        return memory_s + gaps_s
    a_pass, a_tile = cycles[f"{label.name} {label.loop}"]
    busy_s = (work.passes * a_pass + work.tiles * a_tile) / (card.multiprocessors * card.clock_ghz * 1e9)
    return max(memory_s, busy_s) + gaps_s


def milliseconds_by_part(work: Mapping[Label, Work], card: Card, **rates: Any) -> Counter[str]:
    """Return the milliseconds of a step by part; clocks and rates as of ``seconds``."""
    parts: Counter[str] = Counter()
    for label, each in work.items():
        parts[label.part] += 1e3 * seconds(label, each, card, **rates)
    return parts
