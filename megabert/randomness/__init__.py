"""Random numbers that are a pure function of a key, for numpy arrays and inside compiled loops."""
