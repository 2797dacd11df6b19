"""Learning-rate schedule: linear warm-up, then polynomial decay to zero."""

import math

from megabert.config.run import PhaseConfig


def learning_rate(phase: PhaseConfig, phase_step: int) -> float:
    """Return the learning rate of a phase's step.

    NVIDIA's PolyWarmUpScheduler (DeepLearningExamples, BERT): with ``N`` steps, warm-up share ``w``, power ``p``, peak
    ``lr`` and progress ``x = phase_step / N``::

        lr * x / w           for x < w
        lr * (1 - x) ** p    otherwise (decay ``constant``: lr)

    The decay is anchored at step 0, so it begins at ``lr * (1 - w) ** p`` when warm-up ends, and the last step of a
    decaying phase, ``x = 1``, has rate 0: it updates the moments only.

    Args:
        phase: Steps, peak, warm-up share, decay and power.
        phase_step: The update's number within the phase, from 1 to ``phase.steps``.
    """
    progress = phase_step / phase.steps
    if progress < phase.warmup_ratio:
        return phase.learning_rate * progress / phase.warmup_ratio
    if phase.decay == "constant":
        return phase.learning_rate
    return float(phase.learning_rate * max(0.0, 1.0 - progress) ** phase.decay_power)


def linear_warmup_decay(step: int, *, steps: int, warmup_ratio: float, peak: float) -> float:
    """Return the learning rate of fine-tuning: linear up to ``peak``, then linear down to almost zero.

    Unlike ``learning_rate`` the decay begins at the peak, and no update has rate 0: with ``w`` warm-up steps it is
    ``peak * step / w`` up to ``w``, then ``peak * (steps + 1 - step) / (steps - w)``.

    Args:
        step: The update's number, from 1 to ``steps``.
        steps: Updates in all.
        warmup_ratio: Share of them that warm up; rounded up, as transformers does.
        peak: Highest rate.
    """
    warmup = min(math.ceil(steps * warmup_ratio), steps - 1)
    return peak * (step / warmup if step <= warmup else (steps + 1 - step) / (steps - warmup))
