"""Simulates the cycles of a kernel with matrix products from its machine code: issue, pipes, barriers and loads.

A count of instructions says when a scheduler is busy, not when it waits. Here the warps of one of a multiprocessor's
four schedulers, of all programs that fit at once, issue their instructions in order, at most one per clock. Since
Volta an instruction carries the compiler's scheduling: clocks until the next one, and six counters for results that
take unknown time (Jia et al. 2018, arXiv 1804.06826, section 2.1; Huerta et al. 2025, arXiv 2503.20481, section 4). The
other three schedulers are taken to do the same, so a barrier of a program waits for its warps here.

Clocks of units are those of the CUDA C++ programming guide ("throughput of native arithmetic instructions"), of 128
bytes per clock of shared memory, and of the peak of dense bfloat16 products. MEMORY and LAUNCH are fitted to an H100
(``benchmarks/notes.md``). Not simulated: bandwidth of memory, conflicts of banks, caches of data and code,
and predicates, but for copies past the last tile: they are not issued.
"""

import re
from dataclasses import dataclass, field
from math import inf

from machine_code import Instruction, instructions, trace

MEMORY = 1540
"""Clocks until a load or an asynchronous copy from memory arrives, under the load of all multiprocessors."""
LAUNCH = 3050
"""Clocks from the last instruction of a program, whose stores must arrive first, to the first of the next one."""
BARRIER, PRODUCT = 26, 30
"""Clocks until warps go on that met at a barrier, and until the sums of a warp group's product can be read."""
LATENCY = {"MUFU": 24, "F2F": 24, "LDS": 30, "LDSM": 34, "STS": 24, "STSM": 30, "SHFL": 26, "S2R": 30, "R2UR": 12}
"""Clocks until the result of an instruction on a counter can be read, about."""
OPERANDS = 12
"""Clocks until the registers that such an instruction reads can be written."""
TILES, PROGRAMS = (2, 8), 4
"""Two numbers of tiles that a loop is simulated with, and programs one after the other."""
SHARED_KIB = {80: 164, 90: 228}
"""Shared memory of a multiprocessor, by card; each program takes 1 KiB more than it asks for."""

UNITS = (
    ("ALU", r"LOP3|SHF|[IF]SETP|[FI]MNMX|F?SEL|IADD3?|PRMT|LEA|PLOP3|VI\w+|[FI]2FP|IABS|P2R|R2P|SGXT|BMSK", 2, 2),
    ("FMA", r"FFMA|FMUL|FADD", 1, 2),
    ("multiplier", r"IMAD", 2, 2),
    ("special", r"MUFU|F2F|F2I|I2F|POPC|FLO|BREV", 8, 8),
    ("uniform", r"U\w+|R2UR", 2, 2),
    ("memory", r"LD|ST|LDS|STS|LDSM|STSM|LDG|STG|LDGSTS|RED|REDG|ATOM|ATOMG|SHFL", 4, 4),
    ("tensor", r"HMMA", 4, 8),
)  # fmt: skip
"""A scheduler's units, their opcodes, and the clocks of a warp's instruction on sm_90 and sm_80. Memory's clocks are of
4 bytes per thread. HGMMA waits in a queue, for clocks that follow from its shape."""


@dataclass(frozen=True, slots=True)
class Step:
    """What the simulation needs of an instruction."""

    kind: str
    unit: str
    clocks: int
    """How long it occupies its unit."""
    latency: int
    number: int
    """Copies or products that a wait leaves in flight; 1 for the last product of a group."""
    stall: int
    writes: int
    reads: int
    waits: tuple[int, ...]


def step(code: Instruction, card: int) -> Step:
    """Return what the simulation needs of an instruction."""
    found = next((row for row in UNITS if re.fullmatch(row[1], code.name)), ("", "", 1, 1))
    unit, clocks = found[0], found[2 if card >= 90 else 3]
    if unit == "memory":
        clocks *= _words(code.opcode)
    kind, number = code.name, 0
    if kind == "HGMMA":  # m64 x n x k16 in n / 2 clocks
        clocks, number = int(re.search(r"x(\d+)x", code.opcode)[1]) // 2, int("gsb0" in code.operands)
    elif kind == "WARPGROUP" and "DEPBAR" in code.opcode:
        kind = "WARPGROUP.DEPBAR"
    elif kind == "EXIT" and code.is_predicated:  # a way on leads past it
        kind = ""
    if kind in ("DEPBAR", "WARPGROUP.DEPBAR"):
        number = code.number
    latency = MEMORY if kind in ("LDG", "LD", "LDGSTS") else LATENCY.get(kind, 2)
    return Step(kind, unit, clocks, latency, number, code.stall, code.writes, code.reads, code.waits)


def _words(opcode: str) -> int:
    """Return 4-byte words that each thread moves."""
    *_, last = opcode.split(".")
    if opcode.startswith(("LDSM", "STSM")):
        return int(last) if last.isdigit() else 1
    return next((words for width, words in (("128", 4), ("64", 2)) if width in opcode.split(".")), 1)


@dataclass(slots=True)
class Warp:
    """A warp that issues the trace of a program, and then that of the next."""

    program: int
    next: float
    """When the last instruction's stall is over."""
    ready: float = 0.0
    """When its next instruction may issue, but for its unit."""
    unit: str = ""
    """The unit of its next instruction."""
    place: int = 0
    counters: list[float] = field(default_factory=lambda: [0.0] * 8)
    """When the results of each counter have come; 6 and 7 are none."""
    copy: float = 0.0
    """When the copies of the open group have arrived."""
    copies: list[float] = field(default_factory=list)
    """When each group has arrived."""
    products: list[float] = field(default_factory=list)
    """When each group of products is complete."""
    entered: float = 0.0
    """When the last product began: the next one enters the queue of the tensor core then."""
    ended: list[float] = field(default_factory=list)
    """When each of its programs has ended."""


class Scheduler:
    """A scheduler with the warps of all programs that fit its multiprocessor at once."""

    def __init__(self, steps: list[Step], way: list[tuple[int, bool]], *, resident: int, warps: int) -> None:
        self.way = [(steps[number], copies) for number, copies in way]
        self.warps = [Warp(program, 1000.0 * program) for program in range(resident) for _ in range(warps)]
        self.meeting: list[list[tuple[float, Warp]]] = [[] for _ in range(resident)]
        self.size = warps
        self.programs = 2 if resident == 1 else PROGRAMS
        self.free = {unit: 0.0 for unit, *_ in UNITS} | {"": 0.0, "queue": 0.0}

    def run(self) -> float:
        """Return the clocks that a program takes of the multiprocessor, from when the first ones have ended."""
        running, issued = list(self.warps), 0.0
        for warp in running:
            self._prepare(warp)
        while running:
            soonest, chosen = inf, running[0]
            for warp in running:
                time = max(warp.ready, self.free[warp.unit])
                if time < soonest:
                    soonest, chosen = time, warp
            issued = max(soonest, issued + 1)
            self._issue(chosen, issued)
            if len(chosen.ended) == self.programs:
                running.remove(chosen)
        spans = [warp.ended[-1] - warp.ended[0] for warp in self.warps]
        return sum(spans) / len(spans) / (self.programs - 1) * self.size / len(self.warps)

    def _prepare(self, warp: Warp) -> None:
        """Set when a warp's next instruction may issue; at a barrier, when the last warp of its program is there."""
        each, _ = self.way[warp.place]
        warp.unit = each.unit
        ready = warp.next
        for counter in each.waits:
            ready = max(ready, warp.counters[counter])
        if each.kind == "DEPBAR":
            ready = max([ready, *warp.copies[: len(warp.copies) - each.number]])
        elif each.kind == "WARPGROUP.DEPBAR":
            ready = max([ready, *(end + PRODUCT for end in warp.products[: len(warp.products) - each.number])])
        elif each.kind == "HGMMA":
            ready = max(ready, warp.entered)
        elif each.kind in ("BAR", "EXIT"):
            self._meet(warp, ready, BARRIER if each.kind == "BAR" else LAUNCH)
            return
        warp.ready = ready

    def _meet(self, warp: Warp, time: float, wait: int) -> None:
        there = self.meeting[warp.program]
        there.append((time, warp))
        warp.ready = inf
        if len(there) == self.size:
            ready = max(time for time, _ in there) + wait
            for _, each in there:
                each.ready = ready
            there.clear()

    def _issue(self, warp: Warp, time: float) -> None:
        """Issue a warp's next instruction."""
        each, copies = self.way[warp.place]
        if each.unit:
            self.free[each.unit] = time + each.clocks
        arrives, is_read = time + each.latency, time + OPERANDS
        if each.kind == "HGMMA":
            warp.entered = max(time, self.free["queue"])
            arrives = is_read = self.free["queue"] = warp.entered + each.clocks
            if each.number:
                warp.products = [*warp.products[-3:], arrives]
        elif each.kind == "LDGSTS" and copies:
            warp.copy = max(warp.copy, arrives)
        elif each.kind == "LDGDEPBAR":
            warp.copies, warp.copy = [*warp.copies[-15:], warp.copy], 0.0
        warp.counters[each.writes] = max(warp.counters[each.writes], arrives)
        warp.counters[each.reads] = max(warp.counters[each.reads], is_read)
        warp.next = time + each.stall
        warp.place += 1
        if warp.place == len(self.way):
            warp.place = 0
            warp.ended.append(time)
        if len(warp.ended) < self.programs:
            self._prepare(warp)


def simulated_cycles(text: str, *, card: int, warps: int, stages: int, registers: int, shared: int) -> list[int]:
    """Return the clocks of a multiprocessor for a program's begin and end, and for each tile of its loop.

    In a program that passes several times through its loop, "begin and end" are those of a pass. Programs that run at
    the same time share the multiprocessor: two that take 3,000 clocks count 1,500 each.

    Args:
        text: The disassembled kernel.
        card: 80 or 90.
        warps: Warps of a program.
        stages: Stages of its pipeline.
        registers: Registers of a thread.
        shared: Bytes of shared memory of a program.
    """
    code = instructions(text)
    steps = [step(each, card) for each in code]
    by_registers = 65_536 // (-(-registers // 8) * 8 * 32 * warps)
    resident = min(by_registers, 1024 * SHARED_KIB[card] // (shared + 1024), 64 // warps)
    clocks = []
    for tiles in TILES:
        way, passes = trace(code, tiles, stages)
        clocks.append(Scheduler(steps, way, resident=resident, warps=max(1, warps // 4)).run() / passes)
    tile = (clocks[1] - clocks[0]) / (TILES[1] - TILES[0])
    return [round(clocks[0] - TILES[0] * tile), round(tile)]


def cycles_of(table: dict) -> dict[str, dict[str, list[int]]]:
    """Return the simulated clocks by kernel and card, from the table of ``compiled_resources``."""
    found = {
        name: {card: taken["cycles"] for card, taken in cards.items() if "cycles" in taken}
        for name, cards in table.items()
    }
    return {name: cards for name, cards in found.items() if cards}
