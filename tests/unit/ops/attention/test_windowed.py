"""Local attention in plain torch against all pairs, those that are far apart or in other sequences masked."""

import pytest
import torch

from megabert.ops.proof.problem import errors
from megabert.ops.proof.problems import rotary_attention_problem


@pytest.mark.parametrize("reach", [1, 3, 16, 21, 200])
@pytest.mark.parametrize(
    ("lengths", "padding", "dropout"),
    [([1], 0, 0.0), ([16], 0, 0.0), ([50, 1, 33, 0, 7], 0, 0.25), ([90], 5, 0.0), ([15, 17], 40, 0.1)],
)
def test_values_and_gradients_match_float64(lengths, padding, dropout, reach, generator):
    sizes = {"heads": 2, "head_width": 6, "padding": padding, "dropout": dropout}
    problem = rotary_attention_problem(lengths, generator, reach=reach, **sizes)
    assert max(errors(problem, torch.float64, backend="torch").values()) < 1e-12
