"""The estimate as text, and as plain values."""

from typing import Any

from megabert.planning.estimate import Estimate, PhaseEstimate, steps_that_fit, warn_of
from megabert.planning.memory import describe_checkpoints, fits

LAUNCH_BOUND_S = 0.02
"""Some thousand kernels at 5 to 10 microseconds each."""
_COLUMNS = ("phase", "steps", "tokens a step", "micro-steps", "s a step", "tokens/s", "sequences/s", "MFU", "time")


def render_estimate(found: Estimate, *, hours: float | None = None) -> str:
    """Return the page, with the steps that fit into some hours where they are asked for."""
    cluster, config = found.cluster, found.config
    lines = [
        f"{config.name}: {found.parameters / 1e6:.1f} million parameters on {cluster.nodes} x {cluster.gpus_per_node} "
        f"{found.gpu_name}, {found.precision}, ZeRO-{found.zero_stage}",
        "",
        *_memory_lines(found),
        "",
        *_phase_lines(found),
        "",
        f"altogether {_duration(found.hours)}, {found.flops / 1e18:.3g} exaFLOP; validations, checkpoints and "
        "start-ups are not counted",
        f"{describe_checkpoints(config, found.parameters)} of disk",
        *_pass_lines(found),
        *_launch_lines(found),
    ]
    if hours is not None:
        lines += ["", *_hours_lines(found, hours)]
    return "\n".join([*lines, "", _assumption(found)])


def estimate_as_dict(found: Estimate, *, hours: float | None = None) -> dict[str, Any]:
    """Return the same as JSON-able values."""
    return {
        "recipe": found.config.name,
        "gpus": found.cluster.world_size,
        "gpu": found.gpu_name,
        "precision": found.precision,
        "zero_stage": found.zero_stage,
        "parameters": found.parameters,
        "efficiency": found.efficiency,
        "micro_batch_tokens": found.micro_batch_tokens,
        "memory_gib": {str(stage): totals for stage, totals in found.memory_gib.items()},
        "checkpoint_gib": found.checkpoint_gib,
        "phases": [{**vars(phase), "step": vars(phase.step), "hours": phase.hours} for phase in found.phases],
        "hours": found.hours,
        "flops": found.flops,
        "passes": found.passes,
        "steps_that_fit": None if hours is None else steps_that_fit(found, hours),
    }


def _memory_lines(found: Estimate) -> list[str]:
    budgets = sorted(found.memory_gib[1])
    head = "".join(f"{budget:>9,}" for budget in budgets)
    lines = [
        f"GiB a GPU (of {found.cluster.gpu.memory_gib:.0f}) by micro_batch_tokens; * does not fit",
        f"{'':8}{head}",
    ]
    for stage, totals in found.memory_gib.items():
        cells = "".join(f"{totals[b]:>8.1f}{' ' if fits(totals[b], found.cluster.gpu) else '*'}" for b in budgets)
        lines.append(f"  ZeRO-{stage}{cells}")
    return [*lines, f"  taken here: micro_batch_tokens {found.micro_batch_tokens:,}"]


def _phase_lines(found: Estimate) -> list[str]:
    rows = [_COLUMNS, *(_cells(phase) for phase in found.phases)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]


def _cells(phase: PhaseEstimate) -> tuple[str, ...]:
    seconds = phase.step.total_s
    return (
        f"{phase.name} ({phase.max_seq_length})",
        f"{phase.steps:,}",
        f"{phase.tokens_per_step:,.0f}",
        f"{phase.micro_steps}",
        f"{seconds:.3g}",
        f"{phase.tokens_per_step / seconds:,.0f}",
        f"{phase.global_batch_size / seconds:,.0f}",
        f"{phase.mfu_pct:.1f}%",
        _duration(phase.hours),
    )


def _pass_lines(found: Estimate) -> list[str]:
    if found.passes is None:
        return ["passes over the corpus: unknown; give --data.path, or --instances (rows of a phase's shards)"]
    by_phase = ", ".join(f"{phase.name} {phase.passes:.1f}" for phase in found.phases)
    return [f"passes over the corpus: {found.passes:.1f} ({by_phase})", *warn_of(found.passes)]


def _launch_lines(found: Estimate) -> list[str]:
    """Warn where a micro-step is so short that starting its kernels takes longer than running them."""
    short = [phase.name for phase in found.phases if phase.step.compute_s / phase.micro_steps < LAUNCH_BOUND_S]
    if not short:
        return []
    return [
        f"NOTE: {', '.join(short)}: a micro-step computes for less than {1000 * LAUNCH_BOUND_S:.0f} ms, so starting "
        "its kernels counts, which is not modelled: expect it to be slower. Fewer GPUs may do as well."
    ]


def _hours_lines(found: Estimate, hours: float) -> list[str]:
    steps = steps_that_fit(found, hours)
    if found.hours <= hours:
        return [f"all of it fits into {hours:g} hours"]
    flags = " ".join(f"--phases.{index}.steps {count}" for index, count in enumerate(steps))
    return [f"{hours:g} hours hold {100 * hours / found.hours:.0f}% of it, all phases shortened alike:", f"  {flags}"]


def _assumption(found: Estimate) -> str:
    share = f"{100 * found.efficiency:.0f}% of the peak while computing"
    if found.is_efficiency_assumed:
        share += f" (a guess: published A100 runs; not measured on {found.gpu_name}; --efficiency)"
    full = "" if found.passes is not None else "full sequences, "
    return f"assumed: {full}{share}; memory is counted, not measured. docs/scaling.md has the errors."


def _duration(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:.1f} days"
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.1f} min" if hours >= 1 / 60 else f"{3600 * hours:.2g} s"
