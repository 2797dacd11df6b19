"""Before a build starts: a sample of its text, and an estimate of time, disk and memory."""
