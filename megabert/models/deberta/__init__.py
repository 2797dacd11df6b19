"""The layers that only DeBERTa has: disentangled attention and the convolution next to the first layer."""
