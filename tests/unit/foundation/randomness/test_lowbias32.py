from megabert.foundation.randomness.lowbias32 import lowbias32


def test_hash_is_fixed_for_all_time():
    # Dropout of a resumed run depends on these values.
    assert [lowbias32(x) for x in (0, 1, 2, 0xFFFFFFFF, -1)] == [0, 1753845952, 3507691905, 1734902346, 1734902346]
