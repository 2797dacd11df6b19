import pytest

from megabert.training.first_budget import first_budget


@pytest.mark.parametrize(
    ("device", "share", "floor", "budget"),
    [
        ("cuda", 10**9, 128, 131_072),
        ("cpu", 10**9, 128, 8_192),
        ("cpu", 1000, 128, 1024),
        ("cpu", 10, 300, 512),
        ("cpu", 10, 10_000, 10_000),
    ],
)
def test_first_try_is_no_larger_than_a_ranks_share_and_no_smaller_than_an_instance(device, share, floor, budget):
    assert first_budget(device, share=share, floor=floor) == budget
