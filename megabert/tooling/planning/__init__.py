"""Before a run: its needs, its time, and whether everything that it names is there."""
