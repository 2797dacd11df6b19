"""Shared by the Triton backends: the hash of dropout, column sums, tile sizes, checks of inputs, fast math."""
