"""Masking of many instances at once, and the keyed random numbers behind it; no torch."""

from megabert.masking.masking import MaskedInstances, MaskingOptions, PieceTable, count_predictions, mask_instances

__all__ = ["MaskedInstances", "MaskingOptions", "PieceTable", "count_predictions", "mask_instances"]
