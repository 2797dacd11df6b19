"""Fixtures of the ops: poisoned memory for every test, random inputs, boundaries and dropout sites."""

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from megabert.ops.dropout import ATTENTION_OUTPUT, Dropout, DropoutStream
from megabert.ops.proof.problem import poisoned_memory


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Fill what ``torch.empty`` returns with NaN: an element that no op writes is seen."""
    with poisoned_memory():
        yield


@pytest.fixture
def generator(request) -> torch.Generator:
    """Random inputs: others in each test, and the same in each run, so that a failure repeats."""
    return torch.Generator().manual_seed(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def boundaries() -> Callable[[list[int]], torch.Tensor]:
    def make(lengths: list[int]) -> torch.Tensor:
        return torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)

    return make


@pytest.fixture
def make_site() -> Callable[..., Dropout]:
    def make(rows: int, *, probability: float = 0.1, layer: int = 0, seed: int = 7) -> Dropout:
        """A dropout site of one sequence of ``rows`` tokens."""
        stream = DropoutStream.from_batch(
            torch.tensor([seed], dtype=torch.int32), torch.tensor([0, rows], dtype=torch.int32), torch.arange(rows)
        )
        site = stream.site(layer, ATTENTION_OUTPUT, probability)
        assert site is not None
        return site

    return make
