"""Counts of units, added up."""

import tracemalloc

import numpy as np
import pytest

from data_prep.execution.records import EXAMPLES, Tally, add_counts
from megabert.foundation.errors import DataError


def counts(number):
    """What a chunk of web text counts: a few rules with a few examples each."""
    examples = {f"rule{r}": {f"{number:06d}-{i}": f"text {number} {i}" for i in range(EXAMPLES)} for r in range(3)}
    own = {"documents": {"0": 2}, "bytes": 7, "histogram": [1, 0, 2], "rules": {"rule0": {"a": 1}}}
    return {**own, "examples": examples}


def test_sum_is_the_same_in_any_order():
    parts = [counts(number) for number in range(30)]
    order = np.random.default_rng(0).permutation(30)
    assert add_counts(parts) == add_counts([parts[i] for i in order])
    assert list(add_counts(parts)) == list(add_counts([parts[i] for i in order]))


def test_first_examples_of_the_input_are_kept_and_all_numbers_added():
    total = add_counts([counts(number) for number in reversed(range(100))])
    assert total["documents"] == {"0": 200}
    assert total["histogram"] == [100, 0, 200]
    assert total["rules"] == {"rule0": {"a": 100}}
    assert list(total["examples"]["rule1"]) == [f"000000-{i}" for i in range(EXAMPLES)]


def test_memory_does_not_grow_with_units():
    tally = Tally()
    for number in range(50):
        tally.add(counts(number))
    tracemalloc.start()
    for number in range(50, 2000):
        tally.add(counts(number))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 20_000


def test_groups_are_added_up_apart():
    one, other = Tally(), Tally()
    one.add({"rows": 1}, "128 train")
    other.add({"rows": 2}, "128 train")
    other.add({"rows": 4}, "512 train")
    one.merge(other)
    assert (one.of("128 train"), one.of("512 train"), one.of("64 train")) == ({"rows": 3}, {"rows": 4}, {})


@pytest.mark.parametrize("other", [[1, 2], [1, [0], 2], [1, "0", 2], 3, {"a": 1}])
def test_counts_of_another_kind_are_refused(other):
    with pytest.raises(DataError, match="counted histogram over different bins"):
        add_counts([{"histogram": [1, 0, 2]}, {"histogram": other}])
