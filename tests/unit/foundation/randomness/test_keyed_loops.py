import numpy as np
import pytest

from megabert.foundation.randomness.keyed import order_of


@pytest.mark.parametrize(
    "numbers",
    [
        [],
        [7],
        np.random.default_rng(0).integers(0, 1 << 63, 5000).astype(np.uint64) * np.uint64(2),
        np.random.default_rng(1).integers(0, 300, 5000),
        np.random.default_rng(2).integers(0, 1 << 33, 5000),
        (np.arange(500) % 7).astype(np.uint64) + np.uint64(1 << 63),  # alike in all bits that are sorted by radix
        [np.iinfo(np.uint64).max, 0, np.iinfo(np.uint64).max],
    ],
    ids=["none", "one", "hashes", "repeated", "places", "low_bits", "ends"],
)
def test_order_is_that_of_a_stable_sort(numbers):
    numbers = np.asarray(numbers, np.uint64)
    assert order_of(numbers).tolist() == np.argsort(numbers, kind="stable").tolist()
