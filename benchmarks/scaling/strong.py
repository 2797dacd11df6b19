"""Strong scaling of BERT-Large on H200s: which global batch keeps how many GPUs busy, by the model of a step's time.

*Busy* is the share of a step in which a GPU computes. What is left is communication in sight, passes over gradients,
the optimizer, and waiting for the loader.
"""

from dataclasses import replace

from megabert.observability.flops import GPUS
from megabert.settings.config.loading import load_run_config
from megabert.tooling.planning.estimate import PhaseEstimate, estimate
from megabert.tooling.planning.estimate_page import LAUNCH_BOUND_S
from megabert.tooling.planning.step_time import Cluster

LENGTHS = {128: (256, 1024, 4096, 16_384, 65_536), 512: (256, 1024, 4096, 16_384, 32_768)}
"""Length -> global batches of a table."""
GPU_COUNTS = (8, 32, 64, 128, 256, 512, 1024, 4096)
GOOD = 0.95


def estimate_step(length: int, batch: int, gpus: int, *, efficiency: float) -> PhaseEstimate:
    """Return the estimate of recipe ``bert_large`` at ZeRO-1, with one phase of this length and batch."""
    config = load_run_config("bert_large")
    phase = next(phase for phase in config.phases if phase.max_seq_length == length)
    config = replace(config, phases=(replace(phase, global_batch_size=batch),))
    cluster = Cluster(gpu=GPUS["h200"], nodes=gpus // 8, gpus_per_node=8)
    return estimate(config, cluster, efficiency=efficiency).phases[0]


def busy_share(phase: PhaseEstimate) -> float:
    """Return the share of a step in which the GPUs compute."""
    return phase.step.compute_s / phase.step.total_s


def render_strong(efficiency: float) -> str:
    """Return a table for each length as Markdown."""
    return "\n\n".join(_render(length, batches, efficiency) for length, batches in LENGTHS.items())


def _render(length: int, batches: tuple[int, ...], efficiency: float) -> str:
    lines = [
        f"**Length {length}**: share of a step in which {100 * efficiency:.0f}%-efficient GPUs compute, and the most "
        f"of these GPUs that are busy {100 * GOOD:.0f}% of the time.",
        "",
        f"| sequences a step | {' | '.join(f'{gpus:,}' for gpus in GPU_COUNTS)} | GPUs at {100 * GOOD:.0f}% |",
        "|---" * (len(GPU_COUNTS) + 2) + "|",
    ]
    for batch in batches:
        phases = {
            gpus: estimate_step(length, batch, gpus, efficiency=efficiency) for gpus in GPU_COUNTS if gpus <= batch
        }
        cells = [_cell(phases[gpus]) if gpus in phases else "-" for gpus in GPU_COUNTS]
        good = max((gpus for gpus, phase in phases.items() if busy_share(phase) >= GOOD), default=None)
        lines.append(f"| {batch:,} | {' | '.join(cells)} | {'none' if good is None else format(good, ',')} |")
    return "\n".join(lines)


def _cell(phase: PhaseEstimate) -> str:
    """Return the share, starred where a micro-step is too short to be computed as fast as its kernels are launched."""
    is_launch_bound = phase.step.compute_s / phase.micro_steps < LAUNCH_BOUND_S
    return f"{100 * busy_share(phase):.0f}%{'*' if is_launch_bound else ''}"
