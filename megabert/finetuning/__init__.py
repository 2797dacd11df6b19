"""Fine-tuning: tasks as a table, five families of them, one trainer, scores and predictions."""
