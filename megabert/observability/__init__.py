"""What a run shows: metric names, TensorBoard and JSON Lines writers, logs, progress, FLOPs and memory."""
