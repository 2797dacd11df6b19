"""The 32-bit hash of dropout: lowbias32 (Wellons 2018, "Prospecting for hash functions"), a bijection.

torch and Triton have no common source with Python: `megabert.ops` writes the hash once more for each of them, with the
constants of this file, and the tests compare the words of both with `lowbias32`.
"""

GOLDEN = 0x9E3779B9  # 2**32 divided by the golden ratio: sets apart the positions and columns that are hashed
FIRST, SECOND = 0x7FEB352D, 0x846CA68B


def lowbias32(x: int) -> int:
    """Hash one number, as an unsigned 32-bit word."""
    x &= 0xFFFFFFFF
    x ^= x >> 16
    x = x * FIRST & 0xFFFFFFFF
    x ^= x >> 15
    x = x * SECOND & 0xFFFFFFFF
    return x ^ x >> 16
