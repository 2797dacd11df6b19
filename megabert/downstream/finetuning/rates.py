"""``learning_rate: auto``: the rate that fits a model's width, for weights that are pre-trained or random."""

import math
from dataclasses import replace

from megabert.settings.config.finetune import FinetuneConfig

RATES = {128: (2e-3, 2e-3), 256: (1e-3, 1e-3), 384: (1e-4, 3e-4), 768: (3e-5, 1e-4)}
"""The rates by width: for pre-trained weights, and for random weights.

Measured with batches of 32, except for width 768 (Devlin et al. 2019: 2e-5 to 5e-5 in fine-tuning, 1e-4 from random
weights). docs/finetuning.md has the scores around each rate.
"""


def resolve_rate(config: FinetuneConfig, hidden_size: int) -> tuple[FinetuneConfig, str]:
    """Return the settings with a number as learning rate, and a sentence that gives the number and its reason."""
    if config.learning_rate != "auto":
        return config, f"learning rate {config.learning_rate:g}, as given"
    width = min(RATES, key=lambda known: abs(math.log(known / hidden_size)))
    rate = RATES[width][config.random_weights]
    weights = "random" if config.random_weights else "pre-trained"
    return (
        replace(config, learning_rate=rate),
        f"learning rate {rate:g} (auto): {weights} weights of width {hidden_size}, by the table's row for {width}",
    )
