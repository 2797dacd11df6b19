"""The estimate as text for a terminal, and as plain values for JSON."""

from typing import Any

from megabert.foundation.text_tables import render_table, span
from megabert.tooling.measurements.reference import describe_expected
from megabert.tooling.planning import step_time as timing
from megabert.tooling.planning.estimate import Estimate, describe_small_budget, steps_that_fit
from megabert.tooling.planning.memory import checkpoint_gib, describe_checkpoints, describe_memory, fits
from megabert.tooling.planning.passes import title_of, warn_of

LAUNCH_BOUND_S = 0.02
"""A micro-step that computes for less is bound by launches: some thousand kernels at 5 to 10 microseconds each."""
FP8_NOTE = (
    f"NOTE: products in 8 bits are taken to be {timing.FP8_SPEEDUP:.2f} times as fast as in bf16, less the time of "
    "their casts. Nobody has timed a step in fp8."
)
SHOWN_FIGURES = ("zero_stage", "parameters", "efficiency", "micro_batch_tokens", "hours", "flops")
"""Figures of an estimate that are numbers, as JSON names them."""
_COLUMNS = ("phase", "steps", "tokens/step", "micro-steps", "s/step", "tokens/s", "sequences/s", "MFU", "time")


def render_estimate(estimate: Estimate, *, hours: float | None = None) -> str:
    """Return the estimate as text; with ``hours`` also how many steps fit into them."""
    cluster, config = estimate.cluster, estimate.config
    is_muon = config.optimizer.name == "muon"
    is_fp8 = config.precision == "fp8" and estimate.measured is None
    lines = [
        f"{config.name}: {config.model.vocab_size:,} pieces, {estimate.parameters / 1e6:.1f} million parameters on "
        f"{cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu.name}, {config.precision}, ZeRO-{estimate.zero_stage}",
        "",
        *_memory_lines(estimate),
        "",
        *_phase_lines(estimate),
        *_part_lines(estimate),
        "",
        f"altogether {span(3600 * estimate.hours)}, {estimate.flops / 1e18:.3g} exaFLOP; validations, checkpoints and "
        "start-ups are not counted",
        *([FP8_NOTE] if is_fp8 else []),
        *(["not counted either: Muon's Newton-Schulz, and its matrices' way to one rank"] if is_muon else []),
        f"{describe_checkpoints(config, estimate.parameters)} of disk",
        *_pass_lines(estimate),
        *describe_small_budget(config),
        *_launch_lines(estimate),
    ]
    if hours is not None:
        lines += ["", _describe_hours(estimate, hours)]
    expected = describe_expected(config.name)
    return "\n".join(
        [*lines, "", *(["results with this recipe", *expected, ""] if expected else []), _assumption(estimate)]
    )


def estimate_as_dict(estimate: Estimate, *, hours: float | None = None) -> dict[str, Any]:
    """Return the estimate as values for JSON."""
    return {
        "recipe": estimate.config.name,
        "gpus": estimate.cluster.world_size,
        "gpu": estimate.cluster.gpu.name,
        "precision": estimate.config.precision,
        "vocab_size": estimate.config.model.vocab_size,
        **{name: getattr(estimate, name) for name in SHOWN_FIGURES},
        "passes": _plain(estimate.passes),
        "memory_gib": {str(stage): totals for stage, totals in estimate.memory_gib.items()},
        "memory_parts_gib": estimate.memory.parts_gib,
        "checkpoint_gib": checkpoint_gib(estimate.config, estimate.parameters),
        "phases": [
            {**phase._asdict(), "passes": _plain(phase.passes), "step": phase.step._asdict(), "hours": phase.hours}
            for phase in estimate.phases
        ],
        "expected": describe_expected(estimate.config.name),
        "steps_that_fit": None if hours is None else steps_that_fit(estimate, hours),
    }


def _plain(passes: dict[str, float] | None) -> float | dict[str, float] | None:
    """Return passes as a number if the data are a single build, by source if there are several."""
    return passes and passes.get("", passes)


def _memory_lines(estimate: Estimate) -> list[str]:
    gpu, shown = estimate.cluster.gpu, sorted(estimate.memory_gib[1])
    rows = [
        [f"ZeRO-{stage}", *(f"{totals[budget]:.1f}{'' if fits(totals[budget], gpu) else ' *'}" for budget in shown)]
        for stage, totals in estimate.memory_gib.items()
    ]
    table = render_table(rows, headers=["", *(f"{budget:,}" for budget in shown)], align="l" + "r" * len(shown))
    return [
        f"GiB per GPU (of {gpu.memory_gib:.0f}) by micro_batch_tokens; * does not fit",
        *table.splitlines(),
        f"taken here: micro_batch_tokens {estimate.micro_batch_tokens:,}, ZeRO-{estimate.zero_stage}:",
        f"  {describe_memory(estimate.memory.parts_gib)}",
    ]


def _phase_lines(estimate: Estimate) -> list[str]:
    rows = [
        (
            f"{phase.name} ({phase.max_seq_length})",
            f"{phase.steps:,}",
            f"{phase.tokens_per_step:,.0f}",
            f"{phase.micro_steps}",
            f"{phase.step.total_s:.3g}",
            f"{phase.tokens_per_step / phase.step.total_s:,.0f}",
            f"{phase.global_batch_size / phase.step.total_s:,.0f}",
            f"{phase.mfu_pct:.1f}%",
            span(3600 * phase.hours),
        )
        for phase in estimate.phases
    ]
    return render_table(rows, headers=_COLUMNS, align="r" * len(_COLUMNS)).splitlines()


PARTS = ("compute", "communication", "hidden", "passes", "optimizer", "loader")


def _part_lines(estimate: Estimate) -> list[str]:
    """Return the seconds of a step part by part, if they follow from measured rates."""
    if estimate.measured is None:
        return []
    rows = [
        (phase.name, *(f"{1000 * getattr(phase.step, f'{part}_s'):,.1f}" for part in PARTS))
        for phase in estimate.phases
    ]
    table = render_table(rows, headers=("ms per step", *PARTS), align="l" + "r" * len(PARTS))
    return ["", *table.splitlines(), "hidden: the part of the communication that takes place during the computation"]


def _pass_lines(estimate: Estimate) -> list[str]:
    if estimate.passes is None:
        return ["passes over the corpus: unknown; give --data.path, or --instances (rows of a phase's shards)"]
    lines = []
    for source, total in estimate.passes.items():
        by_phase = ", ".join(f"{phase.name} {(phase.passes or {}).get(source, 0):.1f}" for phase in estimate.phases)
        lines.append(f"passes over {title_of(source)}: {total:.1f} ({by_phase})")
    return [*lines, *warn_of(estimate.passes)]


def _launch_lines(estimate: Estimate) -> list[str]:
    """Warn of micro-steps that are so short that launching their kernels takes longer than running them."""
    if estimate.measured is not None:  # the measured seconds include launches
        return []
    short = [phase.name for phase in estimate.phases if phase.step.compute_s / phase.micro_steps < LAUNCH_BOUND_S]
    note = (
        f"NOTE: {', '.join(short)}: a micro-step computes for less than {1000 * LAUNCH_BOUND_S:.0f} ms, so launching "
        "its kernels counts, which is not modelled: expect it to be slower. Fewer GPUs may do as well."
    )
    return [note] if short else []


def _describe_hours(estimate: Estimate, hours: float) -> str:
    if estimate.hours <= hours:
        return f"all of it fits into {hours:g} hours"
    flags = [f"--phases.{index}.steps {count}" for index, count in enumerate(steps_that_fit(estimate, hours))]
    share = f"{100 * hours / estimate.hours:.0f}%"
    return f"{hours:g} hours hold {share} of it, all phases shortened alike:\n  {' '.join(flags)}"


def _assumption(estimate: Estimate) -> str:
    if estimate.measured is not None:
        measured = estimate.measured
        ranks = f"{measured.nodes} node(s) x {measured.ranks_per_node} rank(s)"
        return f"times follow from rates measured on {ranks} of {measured.device}; memory is counted, not measured"
    share = f"{100 * estimate.efficiency:.0f}% of the peak while computing"
    if estimate.is_efficiency_assumed:
        share += f" (a guess: not measured on {estimate.cluster.gpu.name}; --efficiency)"
    full = "" if estimate.passes is not None else "full sequences, "
    return f"assumed: {full}{share}; memory is counted, not measured. docs/before_a_run.md has the errors."
