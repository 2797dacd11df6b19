"""Where metrics are shown: TensorBoard in this process, trackio and wandb in processes of their own."""
