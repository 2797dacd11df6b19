"""Random numbers that are a pure function of a key, and the one home of the hashes behind them.

`splitmix64` holds the 64-bit hash, `lowbias32` the 32-bit one of dropout. `keyed` draws for numpy arrays, `keyed_loops`
for single words inside compiled loops, from the same functions.
"""
