"""Before a run: what it needs, how long it takes, and whether everything it names is there."""
