"""Fixtures of the ops: poisoned memory for every test, fresh random inputs, boundaries and dropout sites."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from benchmarks.ops_problems import poisoned_memory
from megabert.ops.dropout import ATTENTION_OUTPUT, Dropout, DropoutStream


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Fill what ``torch.empty`` returns with NaN: an element that no op writes is seen."""
    with poisoned_memory():
        yield


@pytest.fixture
def generator() -> torch.Generator:
    generator = torch.Generator()
    print("inputs of seed", generator.seed())  # fresh each run; a failure shows it
    return generator


@pytest.fixture
def boundaries() -> Callable[[list[int]], torch.Tensor]:
    def make(lengths: list[int]) -> torch.Tensor:
        return torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)

    return make


@pytest.fixture
def make_site() -> Callable[..., Dropout]:
    def make(rows: int, *, probability: float = 0.1, layer: int = 0, seed: int = 7) -> Dropout:
        """A dropout site of one sequence of ``rows`` tokens."""
        stream = DropoutStream.of_batch(
            torch.tensor([seed], dtype=torch.int32), torch.tensor([0, rows], dtype=torch.int32), torch.arange(rows)
        )
        site = stream.site(layer, ATTENTION_OUTPUT, probability)
        assert site is not None
        return site

    return make
