"""Learning-rate schedule: linear warm-up, then polynomial decay to zero."""

import math

from megabert.config.run import PhaseConfig


def learning_rate(phase: PhaseConfig, phase_step: int) -> float:
    """Return the learning rate of a step of pre-training.

    It is NVIDIA's PolyWarmUpScheduler (DeepLearningExamples, BERT): with ``N`` steps, warm-up share ``w``, power ``p``,
    peak ``lr`` and progress ``x = phase_step / N``::

        lr * x / w           for x < w
        lr * (1 - x) ** p    otherwise (decay ``constant``: lr)

    The decay counts from step 0, not from the end of the warm-up: there the rate drops from ``lr`` to
    ``lr * (1 - w) ** p``. The last step of a decaying phase has rate 0 and updates the moments only.

    Args:
        phase: The phase, with its steps, peak, warm-up share, decay and power.
        phase_step: Number of the update within the phase, from 1 to ``phase.steps``.
    """
    progress = phase_step / phase.steps
    if progress < phase.warmup_ratio:
        return phase.learning_rate * progress / phase.warmup_ratio
    if phase.decay == "constant":
        return phase.learning_rate
    return float(phase.learning_rate * max(0.0, 1.0 - progress) ** phase.decay_power)


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
