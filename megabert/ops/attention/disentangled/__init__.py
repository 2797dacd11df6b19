"""Attention with scores of relative positions: DeBERTa's."""
