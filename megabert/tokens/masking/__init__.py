"""Masked language model targets for many instances at once, by keyed random numbers; no torch."""

from megabert.tokens.masking.masking import (
    MaskedInstances,
    MaskingOptions,
    PieceTable,
    count_predictions,
    mask_instances,
    rarity_weights,
)
