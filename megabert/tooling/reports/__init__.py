"""Looking at a run: its progress, its report, and its difference to another run."""
