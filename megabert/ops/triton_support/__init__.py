"""What the Triton backends share: dropout's hash, column sums, tile sizes, checks of inputs."""
