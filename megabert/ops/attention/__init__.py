"""Attention within packed sequences of unequal lengths.

``dense`` is BERT's, ``rotary`` ModernBERT's, with ``windowed`` for its layers that see near tokens only, and
``disentangled`` DeBERTa's. The dropout of their probabilities is in ``ops.dropout``, and how plain torch lays out their
sequences in ``dense.cpu``.
"""
