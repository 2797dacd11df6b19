"""Learning-rate schedules, warm-up, stable, decay, and all of a run's schedules over its steps."""

import math
from collections.abc import Callable
from typing import NamedTuple

from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import RunConfig


def learning_rate(phase: PhaseConfig, phase_step: int) -> float:
    """Return the learning rate of a step of pre-training: warm-up, stable, decay.

    With ``N`` steps, warm-up share ``w``, decay share ``d``, peak ``lr``, final rate ``f`` and progress
    ``x = phase_step / N``::

        lr * x / w                 for x < w, and for all x if w is 1
        lr                         for x <= 1 - d
        f + (lr - f) * shape(y)    otherwise, with y = (x - (1 - d)) / d, which rises from 0 to 1

    ``SHAPES`` has the shapes. By default ``d`` is ``1 - w``, so that the decay begins where the warm-up ends, but for
    ``polynomial``: there ``d`` is 1, which is NVIDIA's PolyWarmUpScheduler (DeepLearningExamples, BERT). Its decay
    counts from step 0, not from the end of the warm-up: there the rate drops from ``lr`` to ``lr * (1 - w) ** p``.

    The last step of a phase that decays to 0 has rate 0 and updates the moments only.

    Args:
        phase: The phase, with its steps, rates, warm-up and decay.
        phase_step: Number of the update within the phase, from 1 to ``phase.num_steps``.
    """
    progress = phase_step / phase.num_steps
    if progress < phase.warmup_ratio or phase.warmup_ratio == 1:
        return phase.learning_rate * progress / phase.warmup_ratio
    if phase.decay == "constant":
        return phase.learning_rate
    share = phase.decay_ratio
    if share is None:
        share = 1.0 if phase.decay == "polynomial" else 1.0 - phase.warmup_ratio
    left = max(0.0, (1.0 - progress) / share)  # of the decay: 1 before it begins, 0 at its end
    if left >= 1.0:
        return phase.learning_rate
    final = phase.final_learning_rate
    return final + (phase.learning_rate - final) * SHAPES[phase.decay](left, phase.decay_power or 1.0)


SHAPES: dict[str, Callable[[float, float], float]] = {
    "polynomial": lambda left, power: left**power,
    "linear": lambda left, power: left,
    "cosine": lambda left, power: 0.5 - 0.5 * math.cos(math.pi * left),
    "one_minus_sqrt": lambda left, power: 1.0 - math.sqrt(1.0 - left),
}
"""Height of the rate above the final rate, from 1 to 0, by the share of the decay that is left, ``1 - y``:
``(1 - y) ** p``; ``1 - y``; ``(1 + cos(pi * y)) / 2`` (Loshchilov & Hutter 2017, arXiv:1608.03983); ``1 - sqrt(y)``
(Haegele et al. 2024, arXiv:2405.18392)."""


class PlannedStep(NamedTuple):
    """The schedules of a phase at one of its steps."""

    step: int
    """Number of the update in the run."""
    rate: float
    """Learning rate."""
    batch_size: int
    """Instances, if no batch before it is skipped."""
    masked_share: float | None
    """Share of the tokens that the loader masks, if the phase sets it."""


def planned_steps(config: RunConfig, points: int) -> list[list[PlannedStep]]:
    """Return for each phase at most ``points`` of its steps, evenly spaced, the first and the last included.

    Args:
        config: The run, with every phase in steps.
        points: Two or more.
    """
    phases, before = [], 0
    for phase in config.phases:
        gaps = max(1, min(points, phase.num_steps) - 1)
        chosen = sorted({1 + round(gap * (phase.num_steps - 1) / gaps) for gap in range(gaps + 1)})
        phases.append(
            [
                PlannedStep(before + k, learning_rate(phase, k), phase.batch_size(k - 1), phase.masked_share(k - 1))
                for k in chosen
            ]
        )
        before += phase.num_steps
    return phases


def linear_warmup_decay(step: int, *, steps: int, warmup_ratio: float, peak: float) -> float:
    """Return the learning rate of a step of fine-tuning: linear up to ``peak``, then linear down to almost zero.

    Unlike in ``learning_rate`` the decay begins at the peak, and no update has rate 0: with ``w`` warm-up steps it is
    ``peak * step / w`` up to ``w``, then ``peak * (steps + 1 - step) / (steps - w)``.

    Args:
        step: Number of the update, from 1 to ``steps``.
        steps: Number of all updates.
        warmup_ratio: Share of the updates that warm up, rounded up to whole updates, as transformers does.
        peak: The highest rate.
    """
    # At least one step is left for the decay, or it would divide by zero.
    warmup = min(math.ceil(steps * warmup_ratio), steps - 1)
    return peak * (step / warmup if step <= warmup else (steps + 1 - step) / (steps - warmup))
