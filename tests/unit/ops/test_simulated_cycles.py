"""The simulation of cycles, on programs of a few instructions whose clocks can be added up by hand."""

import pytest
from unit.ops import simulated_cycles
from unit.ops.simulated_cycles import BARRIER, LAUNCH, MEMORY, instructions, trace


def assembled(*program):
    """Return a disassembly: instructions with what is not usual of their control bits; each has 16 bytes."""
    lines = []
    for number, (text, bits) in enumerate(program):
        control = bits.get("stall", 1) | bits.get("writes", 7) << 5 | bits.get("reads", 7) << 8
        control |= sum(1 << counter for counter in bits.get("waits", ())) << 11
        lines.append(f"        /*{16 * number:04x}*/    {text} ;   /* 0x{0:016x} */\n    /* 0x{control << 41:016x} */")
    return "\n".join(lines)


def clocks(*loop, warps=4, stages=1, registers=255, shared=200 * 1024):
    """Return clocks of a pass and of a tile of a loop."""
    program = [("MOV R1, R2", {}), *loop, ("@P0 BRA 0x10", {}), ("EXIT", {})]
    text = assembled(*program)
    return simulated_cycles.simulated_cycles(
        text, card=90, warps=warps, stages=stages, registers=registers, shared=shared
    )


def test_control_bits_of_an_instruction_are_read():
    load = ("@!P0 LDG.E.128 R4, desc[UR4][R2.64]", {"stall": 0, "writes": 2})
    first, second = instructions(assembled(load, ("FADD R1, R4, R5", {"waits": (2, 5)})))
    assert (first.opcode, first.is_predicated, first.stall, first.writes, first.reads) == ("LDG.E.128", True, 1, 2, 7)
    assert (second.name, second.address, second.waits) == ("FADD", 16, (2, 5))


def test_a_result_is_waited_for_by_the_instruction_that_names_its_counter():
    load, product = ("LDG.E R4, [R2]", {"writes": 0}), "HMMA.16816.F32.BF16 R8, R4, R6, R8"
    assert clocks(load, (product, {}))[1] == pytest.approx(4, abs=1)  # the tensor core and the loads both need 4
    assert clocks(load, (product, {"waits": (0,)}))[1] == pytest.approx(MEMORY + 2, abs=1)


def test_copies_in_flight_hide_the_memory():
    def tile(in_flight):
        copies = [("LDGSTS.E.BYPASS.128 [R1], [R2.64]", {}), ("LDGDEPBAR", {})]
        return clocks(*copies, (f"DEPBAR.LE SB0, 0x{in_flight}", {}), ("HMMA.16816 R8, R4, R6, R8", {}))[1]

    assert tile(0) > MEMORY
    assert tile(1) == pytest.approx(tile(0) / 2, rel=0.2)


def test_the_last_tiles_of_a_pipeline_copy_nothing():
    loop = [("LDGSTS [R1], [R2.64]", {}), ("HMMA R8", {}), ("@P0 BRA 0x10", {})]
    way, passes = trace(instructions(assembled(("MOV R1, R2", {}), *loop, ("EXIT", {}))), 4, stages=3)
    assert passes == 1
    assert [copies for number, copies in way if number == 1] == [True, True, False, False]


def test_a_loop_around_is_passed_through_again_and_an_early_exit_is_not_taken():
    code = instructions(
        assembled(
            *[("@P1 EXIT", {}), ("MOV R1, R2", {}), ("HMMA R8", {}), ("@P0 BRA 0x20", {})],
            *[("@P2 BRA 0x60", {}), ("MOV R3, R4", {}), ("@P3 BRA 0x10", {}), ("EXIT", {})],
        )
    )
    way, passes = trace(code, 2, stages=1)
    assert passes == simulated_cycles.PASSES
    assert [number for number, _ in way] == [0, 1, *(passes - 1) * [2, 3, 2, 3, 4, 6, 1], 2, 3, 2, 3, 4, 6, 7]


def test_a_barrier_waits_for_every_warp_of_a_program_and_products_for_the_tensor_core():
    barrier, product = ("BAR.SYNC.DEFER_BLOCKING 0x0", {}), ("HGMMA.64x64x16.F32.BF16 R8, gdesc[UR4], R8, gsb0", {})
    wait = ("WARPGROUP.DEPBAR.LE gsb0, 0x0", {})
    assert clocks(barrier, product, warps=8)[1] == pytest.approx(64, abs=1)  # two products of 32 clocks
    assert clocks(barrier, product, wait, warps=8)[1] > 64 + BARRIER


def test_a_second_program_hides_the_launch_of_the_first():
    alone, shared = (clocks(("HMMA R8", {}), warps=4, shared=each * 1024)[0] for each in (200, 100))
    assert alone == pytest.approx(LAUNCH, abs=20)
    assert shared == pytest.approx(alone / 2, rel=0.1)
