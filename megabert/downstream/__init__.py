"""After pre-training: fine-tuning, inspection, the exchange with transformers, publishing."""
