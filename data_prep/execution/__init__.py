"""How a build runs and restarts: units of work and their records, executors, progress, memory."""
