"""The trainer: setup, phases, the step, validation, the run folder."""
