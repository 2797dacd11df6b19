"""The layers that only DeBERTa has: disentangled attention and the convolution beside the first layer."""
