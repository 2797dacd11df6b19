"""The output of a run: metric names, TensorBoard and JSON Lines writers, logs, progress, FLOPs and memory."""
