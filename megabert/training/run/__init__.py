"""The run folder: configuration, status, forks, and which checkpoints are kept."""
