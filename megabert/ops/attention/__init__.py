"""Attention within packed sequences of unequal lengths.

``dense`` is BERT's, ``rotary`` ModernBERT's, with ``windowed`` for its layers that see near tokens only, and
``disentangled`` DeBERTa's. ``dropout`` is the dropout of the probabilities of all of them, and ``layouts`` how plain
torch lays out their sequences.
"""
