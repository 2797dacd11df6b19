"""The tables of README.md: published systems next to the model of a step's time, BERT-Large on H200s, batches.

    python -m benchmarks.scaling

Run it from the repository's root; it needs no GPU, takes seconds and prints Markdown.
"""

from benchmarks.scaling.published import PUBLISHED, Published, predict, worst_error_pct
from benchmarks.scaling.strong import render_strong
from megabert.observability.flops import GPUS
from megabert.settings.config.loading import load_run_config
from megabert.tooling.planning.estimate import estimate
from megabert.tooling.planning.step_time import Cluster

H200_NODES = (1, 8, 32)
TARGET_EFFICIENCY = 0.56
"""What a step needs while computing to reach the goal of 54% MFU (optimizer and collectives included)."""


def render_scaling() -> str:
    """Return the tables of published systems and of H200s as Markdown."""
    parts = [_render_published(system) for system in PUBLISHED]
    return "\n\n".join([*parts, _render_h200(), _render_parts()])


def _render_published(system: Published) -> str:
    efficiency, predictions = predict(system)
    lines = [
        f"**{system.name}**, {GPUS[system.gpu].words}. {system.source}. Fitted on {min(system.seconds)} GPUs: "
        f"{100 * efficiency:.1f}% of the peak while computing. Largest error elsewhere: "
        f"{worst_error_pct(predictions):+.1f}%.",
        "",
        "| GPUs | published | predicted | error |",
        "|---|---|---|---|",
    ]
    for point in predictions:
        error = "fitted" if point.is_fitted else f"{point.error_pct:+.1f}%"
        lines.append(f"| {point.gpus} | {_time(point.published_s)} | {_time(point.predicted_s)} | {error} |")
    worst = {gpus: worst_error_pct(predict(system, fitted_on=gpus)[1]) for gpus in system.seconds}
    listed = ", ".join(f"{gpus}: {error:+.1f}%" for gpus, error in worst.items())
    return "\n".join([*lines, "", f"Largest error by the GPUs of the fitted point: {listed}."])


def _render_h200() -> str:
    config = load_run_config("bert_large")
    lines = [
        "**Recipe bert_large on H200**, full sequences, ZeRO-1, 8 GPUs a node. Nothing of this is measured.",
        "",
        "| GPUs | while computing | s per step, phase 1 and 2 | MFU, phase 1 and 2 | sequences/s | both phases |",
        "|---|---|---|---|---|---|",
    ]
    for efficiency in (None, TARGET_EFFICIENCY):
        for nodes in H200_NODES:
            cluster = Cluster(gpu=GPUS["h200"], nodes=nodes, gpus_per_node=8)
            plan = estimate(config, cluster, efficiency=efficiency)
            first, second = plan.phases
            rates = [phase.global_batch_size / phase.step.total_s for phase in plan.phases]
            lines.append(
                f"| {cluster.world_size} | {100 * plan.efficiency:.0f}% | {first.step.total_s:.3f}, "
                f"{second.step.total_s:.3f} | {first.mfu_pct:.1f}%, {second.mfu_pct:.1f}% | {rates[0]:,.0f}, "
                f"{rates[1]:,.0f} | {plan.hours:.1f} h |"
            )
    return "\n".join(lines)


def _render_parts() -> str:
    config, base = load_run_config("bert_large"), None
    lines = [
        f"**The parts of a step**, phase 1 of bert_large on H200s at {100 * TARGET_EFFICIENCY:.0f}%, in ms.",
        "",
        "| GPUs | compute | sent | of it hidden | passes | optimizer | step | kept from 8 GPUs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for nodes in H200_NODES:
        cluster = Cluster(gpu=GPUS["h200"], nodes=nodes, gpus_per_node=8)
        step = estimate(config, cluster, efficiency=TARGET_EFFICIENCY).phases[0].step
        base = base or step.total_s * cluster.world_size
        parts = (step.compute_s, step.communication_s, step.hidden_s, step.passes_s, step.optimizer_s, step.total_s)
        lines.append(
            f"| {cluster.world_size} | {' | '.join(f'{1000 * part:.1f}' for part in parts)} | "
            f"{100 * base / (step.total_s * cluster.world_size):.1f}% |"
        )
    return "\n".join(lines)


def _time(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.2f} h"
    if seconds >= 90:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"


if __name__ == "__main__":
    print(render_scaling())
    print()
    print(render_strong(TARGET_EFFICIENCY))
