"""Attention to all tokens of a sequence: BERT's."""
