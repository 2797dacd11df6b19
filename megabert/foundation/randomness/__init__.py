"""Random numbers that are a pure function of a key, and the one home of their hashes.

`keyed` holds the 64-bit hash and draws for numpy arrays, `keyed_loops` for single words inside compiled loops, from the
same functions. `lowbias32` is the 32-bit hash of dropout.
"""
