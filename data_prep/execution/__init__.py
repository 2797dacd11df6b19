"""How a build runs: units of work, executors, progress, memory, and what a restart finds."""
