"""Reads the machine code of a kernel, and follows a program through it: which instructions it issues, in order."""

import heapq
import re
from collections.abc import Callable
from dataclasses import dataclass

PASSES = 4
"""Passes of a loop around the loop with matrix products."""
LINE = re.compile(
    r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([\w.]+)([^;]*);\s+/\* 0x[0-9a-f]{16} \*/\s+/\* 0x([0-9a-f]{16}) \*/"
)


@dataclass(frozen=True)
class Instruction:
    """A machine instruction with its control bits."""

    address: int
    is_predicated: bool
    opcode: str
    operands: str
    stall: int
    """Clocks until the warp's next instruction."""
    writes: int
    """Counter that waits for its result, or 7."""
    reads: int
    """Counter that waits until its operands are read, or 7."""
    waits: tuple[int, ...]
    """Counters that must be at zero before it issues."""

    @property
    def name(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.split(".")[0]

    @property
    def number(self) -> int:
        """The first number among the operands: the target of a branch, or what a wait leaves in flight."""
        return int(re.search(r"0x([0-9a-f]+)", self.operands)[1], 16)


def instructions(text: str) -> list[Instruction]:
    """Return the instructions of a disassembled kernel; control bits begin at bit 105 of 128."""
    return [
        Instruction(
            address=int(line[1], 16),
            is_predicated=line[2] is not None,
            opcode=line[3],
            operands=line[4],
            stall=max(1, control & 15),
            writes=control >> 5 & 7,
            reads=control >> 8 & 7,
            waits=tuple(counter for counter in range(6) if control >> 11 + counter & 1),
        )
        for line in LINE.finditer(text)
        for control in (int(line[5], 16) >> 41,)
    ]


def successors(code: list[Instruction]) -> list[list[int]]:
    """Return which instructions may follow each."""
    index = {instruction.address: number for number, instruction in enumerate(code)}
    followers = []
    for number, each in enumerate(code):
        ends = each.name in ("BRA", "EXIT") and not each.is_predicated
        targets = [index[each.number]] if each.name == "BRA" else []
        followers.append(targets if ends else [number + 1, *targets])
    return followers


def shortest(
    followers: list[list[int]], start: int, is_goal: Callable[[int], bool], without: tuple[int, int] | None = None
) -> list[int]:
    """Return the shortest way between two instructions, both ends left out; none: an empty list.

    Args:
        followers: Which instructions may follow each.
        start: The first.
        is_goal: Whether the way ends at an instruction.
        without: A branch that is not to be taken.
    """
    before, queue = {start: start}, [(0, start)]
    while queue:
        length, here = heapq.heappop(queue)
        if length and is_goal(here):
            way = []
            while before[here] != start:
                here = before[here]
                way.append(here)
            return way[::-1]
        for follower in followers[here]:
            if follower not in before and (here, follower) != without:
                before[follower] = here
                heapq.heappush(queue, (length + 1, follower))
    return []


def trace(code: list[Instruction], tiles: int, stages: int) -> tuple[list[tuple[int, bool]], int]:
    """Return a program's instructions one after the other, and how often it passes through its loop.

    The loop is the shortest one with matrix products, as in ``inner_loop.matrix_loop``. On the way to it and from it to
    the end a program takes the fewest instructions: with full tiles it writes no padding and has no rest of a sequence.
    If a way leads from its end to its begin, there is a loop around it.

    Args:
        code: The kernel.
        tiles: Iterations of the loop.
        stages: Stages of its pipeline: the last ``stages - 1`` iterations copy nothing.

    Returns:
        Numbers of instructions, each with whether it copies if it is a copy; and the number of passes.
    """
    followers = successors(code)
    first, last = min(
        (
            (target, number)
            for number, targets in enumerate(followers)
            for target in targets
            if target <= number and any("MMA" in each.name for each in code[target : number + 1])
        ),
        key=lambda ends: ends[1] - ends[0],
    )
    begin = [0, *shortest(followers, 0, lambda number: number == first)]
    again = shortest(followers, last, lambda number: number == first, without=(last, first))
    ends = [number for number, each in enumerate(code) if each.name == "EXIT" and not each.is_predicated]
    end = shortest(followers, last, lambda number: number in ends, without=(last, first))
    passes = PASSES if again else 1
    loop = [(number, tile < tiles - stages + 1) for tile in range(tiles) for number in range(first, last + 1)]
    between = [(number, True) for number in again]
    whole = [(number, True) for number in begin] + loop + (passes - 1) * (between + loop)
    return [*whole, *((number, False) for number in end), (ends[-1], False)], passes
