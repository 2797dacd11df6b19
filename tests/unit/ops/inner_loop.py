"""Counts the machine instructions of a compiled kernel's innermost loop: what an element of the scores costs.

Arithmetic of the matrix products runs on tensor cores next to all else, so in a kernel with dropout it is the other
instructions that decide. Two limits count: a scheduler issues one instruction a clock, and the pipe for integers,
comparisons, selections and conversions (ALU) takes one every other clock.
"""

import functools
import re
import subprocess
import tempfile
from pathlib import Path

import triton

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(\w+)([^;]*);")
# The ALU pipe of sm_90. IMAD is not among them: it has the multipliers of float32.
ALU = re.compile(
    "LOP3|SHF|ISETP|FSETP|FMNMX|FSEL|SEL|IADD3?|PRMT|IMNMX|LEA|PLOP3|VIMNMX|F2FP|I2FP|IABS|P2R|R2P|BMSK|SGXT|FCHK|"
    "VIADD|VIADDMNMX|HMNMX2"
)
MATRIX = frozenset(("HGMMA", "HMMA"))
PRODUCT = re.compile(r"tt\.dot |ttng\.warp_group_dot |ttng\.tc_gen5_mma")
WAIT = re.compile(r"async_wait.*\bnum = (\d+)")


@functools.lru_cache(maxsize=1)
def disassembled(cubin: bytes) -> str:
    """Return the machine code of a compiled kernel as text."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([CUOBJDUMP, "-sass", file.name], capture_output=True, text=True, check=True).stdout


def opcodes(cubin: bytes) -> list[tuple[int, str, str]]:
    """Return address, opcode and operands of every instruction."""
    lines = map(LINE.search, disassembled(cubin).splitlines())
    return [(int(found[1], 16), found[2], found[3]) for found in lines if found]


def loops(instructions: list[tuple[int, str, str]]) -> list[list[str]]:
    """Return the opcodes of every loop, from the target of a branch backwards to the branch."""
    index = {address: number for number, (address, _, _) in enumerate(instructions)}
    bodies = []
    for number, (address, opcode, operands) in enumerate(instructions):
        target = re.search(r"0x([0-9a-f]+)", operands) if opcode == "BRA" else None
        if target and int(target[1], 16) < address:
            first = index[int(target[1], 16)]
            bodies.append([opcode for _, opcode, _ in instructions[first : number + 1]])
    return bodies


def left_in_flight(ttgir: str) -> int | None:
    """Return the fewest groups of copies that a loop with matrix products leaves in flight when it waits for one.

    Args:
        ttgir: Triton's representation of the kernel, in which copies and waits are named.

    Returns:
        0 if a loop waits for all copies, or copies nothing ahead; None for a kernel without such a loop.
    """
    fewest: list[int] = []
    open_loops: list[tuple[int, list[str]]] = []  # depth of the braces around, lines of its own
    depth = 0
    for line in ttgir.splitlines():
        if re.search(r"\bscf\.(for|while)\b", line):
            open_loops.append((depth, []))
        elif open_loops:
            open_loops[-1][1].append(line)
        depth += line.count("{") - line.count("}")
        while open_loops and depth <= open_loops[-1][0] and "}" in line:
            _, body = open_loops.pop()
            if any(map(PRODUCT.search, body)):
                fewest.append(min((int(wait[1]) for wait in map(WAIT.search, body) if wait), default=0))
    return min(fewest, default=None)


def matrix_loop(cubin: bytes) -> list[str]:
    """Return the opcodes of the shortest loop that multiplies matrices: of nested ones the innermost.

    A loop over whole tiles is shorter than the loop after it, which masks the last tile.
    """
    return min((body for body in loops(opcodes(cubin)) if MATRIX & set(body)), key=len)


def per_element(cubin: bytes, *, elements: float) -> dict[str, float]:
    """Return instructions for one element, all and those of the ALU pipe, and which matrix instruction there is.

    Args:
        cubin: The compiled kernel.
        elements: Elements of a tile divided by the threads of a program.
    """
    body = matrix_loop(cubin)
    return {
        "issued": round(len(body) / elements, 2),
        "alu": round(sum(ALU.fullmatch(opcode) is not None for opcode in body) / elements, 2),
        "hmma": body.count("HMMA"),
    }


def loops_of(table: dict) -> dict[str, dict[str, float]]:
    """Return what was counted in inner loops, by kernel, from the table of ``compiled_resources``."""
    return {name: cards["90"]["loop"] for name, cards in table.items() if "loop" in cards.get("90", {})}
