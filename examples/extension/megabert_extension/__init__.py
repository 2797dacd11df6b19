"""One module for each entry point, so that a build need not import torch."""
