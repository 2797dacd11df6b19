"""Seconds of counted work on a card.

Products run at the mean rate of the twelve shapes; everything else at a share of the memory's copy rate, and attention
by the longer of memory and arithmetic. A kernel's arithmetic is its instructions, of which each of a multiprocessor's
four schedulers issues one per clock, plus its products on the tensor cores, times ``STALLS``. If only one of its
programs fits a multiprocessor, nothing hides its loads, so both times add up.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.predictions.counts import FLOPS_PER_ELEMENT, Label, Work

SCHEDULERS, LANES, REGISTERS = 4, 32, 65_536
"""A multiprocessor's schedulers, threads of a warp, and registers."""
STALLS = 1.2
"""Time of attention's loop over issued instructions and products together: with it, Triton's own attention at a head
width of 64 and length 512 comes to the 340 TFLOP/s that are published for an H100."""
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
    large_tflops: float
    """Rate of a large product, for those in attention."""
    sources: str


CARDS = {
    "H200": Card(
        capability=(9, 0),
        multiprocessors=132,
        clock_ghz=1.76,
        copy_gb_s=4300,
        product_tflops=(670, 620, 720),
        large_tflops=790,
        sources="copy: the H100's share of its datasheet (90%); products: the H100's",
    ),
    "H100": Card(
        capability=(9, 0),
        multiprocessors=132,
        clock_ghz=1.76,
        copy_gb_s=3000,
        product_tflops=(670, 620, 720),
        large_tflops=790,
        sources="copy and large product read on one card, with nothing of ours",
    ),
    "A100": Card(
        capability=(8, 0),
        multiprocessors=108,
        clock_ghz=1.41,
        copy_gb_s=1830,
        product_tflops=(235, 215, 255),
        large_tflops=265,
        sources="copy: 90% of the datasheet; products: 75% of the peak, a large one 85%",
    ),
}
Loops = Mapping[str, float]
"""Instructions per element by kernel and kind of loop."""


def seconds(label: Label, work: Work, card: Card, *, loops: Loops, registers: Mapping[str, int], rate: float) -> float:
    """Return the seconds of one kernel's work.

    Args:
        label: Which kernel.
        work: Its work.
        card: The card.
        loops: Instructions of attention's kernels.
        registers: Registers of a thread of the same kernels.
        rate: TFLOP/s of products.
    """
    gaps_s = work.launches * LAUNCH_S
    if work.flops and label.name not in FLOPS_PER_ELEMENT:
        return work.flops / rate / 1e12 + gaps_s
    memory_s = work.bytes / (card.copy_gb_s * 1e9 * SHARES.get(label.name, USUAL_SHARE))
    if not label.loop:
        return memory_s + gaps_s
    key = f"{label.name} {label.loop}"
    issued_per_s = card.multiprocessors * SCHEDULERS * LANES * card.clock_ghz * 1e9
    busy_s = STALLS * (work.elements * loops[key] / issued_per_s + work.flops / card.large_tflops / 1e12)
    is_alone = 2 * registers[key] * work.warps * LANES > REGISTERS
    return (memory_s + busy_s if is_alone else max(memory_s, busy_s)) + gaps_s


def milliseconds_by_part(
    work: Mapping[Label, Work], card: Card, *, loops: Loops, registers: Mapping[str, int], rate: float
) -> Counter[str]:
    """Return the milliseconds of a step by part."""
    parts: Counter[str] = Counter()
    for label, each in work.items():
        parts[label.part] += 1e3 * seconds(label, each, card, loops=loops, registers=registers, rate=rate)
    return parts
