"""How long a run takes on a CPU: the FLOPs of its steps, at the rate of matrix products of its sizes, measured at once.

On GPUs ``megabert estimate`` says it from datasheets. On a CPU nothing else would: a recipe for GPUs starts there, and
the first line of progress comes after hours.
"""

import time
from collections.abc import Sequence

from megabert.foundation.text_tables import span
from megabert.observability.flops import local_pairs, training_flops
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import RunConfig
from megabert.tokens.shards.folder import InstanceStatistics

CPU_SHARE = 0.4
"""Share of the products' rate that forward and backward pass reach on a CPU: 0.34 to 0.42 from 2 layers of 128 to 12 of
768 were measured, by CPU seconds."""
HOPELESS_S = 2 * 86_400.0
"""A run that is expected to take longer on a CPU is warned of."""
_PROBE_TOKENS, _PROBES = 2048, 8


def step_flops(config: RunConfig, index: int, statistics: InstanceStatistics) -> float:
    """Return the FLOPs of a step of a phase, of all ranks: means of the data stand for every batch.

    Args:
        config: The run; sizes and steps are numbers.
        index: Number of the phase.
        statistics: Rows, tokens and masked tokens of the phase's data.
    """
    phase = config.phases[index]
    # The data's masked tokens are counted at the greatest share, for which batches are packed.
    share = phase.mean_masked
    masked = statistics.masked_tokens if share is None else share * statistics.tokens
    batch, length = round(phase.num_instances / phase.num_steps), statistics.tokens / statistics.rows
    return training_flops(
        config.model,
        tokens=round(batch * length),
        squared_lengths=round(batch * length * length),
        masked=round(batch * masked / statistics.rows),
        local_pairs=batch * local_pairs(config.model, [length]),
    )


def cpu_seconds(config: RunConfig, statistics: Sequence[InstanceStatistics], ranks: int = 1) -> list[float]:
    """Return the seconds that a step of each phase takes on this machine's CPU, about.

    Args:
        config: The run.
        statistics: Statistics of each phase's data.
        ranks: Number of ranks, each with the threads of this process.
    """
    rate = CPU_SHARE * _products_per_s(config.model) * ranks
    return [step_flops(config, index, data) / rate for index, data in enumerate(statistics)]


def describe_cpu_time(config: RunConfig, seconds: Sequence[float], steps_left: Sequence[int]) -> str:
    """Return the time that a run takes on a CPU, as a sentence; a warning if it is more than two days.

    Args:
        config: The run.
        seconds: Result of `cpu_seconds`.
        steps_left: Steps of each phase that are not made yet.
    """
    total = sum(step_s * steps for step_s, steps in zip(seconds, steps_left, strict=True))
    slowest = max(step_s for step_s, steps in zip(seconds, steps_left, strict=True) if steps)
    says = (
        f"about {span(total)} for {sum(steps_left):,} steps, up to {span(slowest)} each, on this CPU if it does "
        "nothing else"
    )
    if slowest > config.watchdog.other_s / 2:
        says += f"; raise watchdog.other_s ({config.watchdog.other_s:g} s), or its first steps may count as hanging"
    if total <= HOPELESS_S:
        return f"expected: {says}"
    return (
        f"WARNING: {says}. {config.name} is meant for a GPU. Ctrl-C ends it; on a CPU take a smaller model and batch "
        "(--recipe demo or debug; --model.preset, --phases.N.global-batch-size), or fewer steps (--phases.N.steps)."
    )


def _products_per_s(model: ModelConfig) -> float:
    """Return the FLOP/s of float32 products of this process's threads, in the sizes of the feed-forward layer.

    CPU seconds are counted, so that a machine that is busy with something else does not look slower than it is.
    """
    import torch

    x_TD = torch.rand(_PROBE_TOKENS, model.hidden_size)
    weight_DF = torch.rand(model.hidden_size, model.intermediate_size)
    seconds = []
    for _ in range(_PROBES):  # the first ones pay for threads and memory
        started = time.process_time()
        x_TD @ weight_DF
        seconds.append(time.process_time() - started)
    flops = 2 * _PROBE_TOKENS * model.hidden_size * model.intermediate_size
    return flops * torch.get_num_threads() / max(min(seconds), 1e-9)  # the clock may not have moved
