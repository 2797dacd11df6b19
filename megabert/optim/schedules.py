"""Learning-rate schedule: linear warm-up, then polynomial decay to zero."""

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
