"""Every test starts from the same global seed, so that a failure repeats."""

import pytest
import torch


@pytest.fixture(autouse=True)
def same_global_seed() -> None:
    torch.manual_seed(1810)
