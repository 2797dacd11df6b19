"""What the Triton backends share: the hash of dropout, column sums, tile sizes, checks of inputs, fast math."""
