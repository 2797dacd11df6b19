"""Process groups, the DeepSpeed engine, the fragment table, checkpoints and the lock of a run folder."""
