"""A grid of fine-tunings: its cells, the estimate before it starts, the choice, the picture."""
