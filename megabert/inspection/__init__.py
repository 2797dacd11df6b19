"""Looking at a model and at a run: fill-mask, baselines, reports."""
