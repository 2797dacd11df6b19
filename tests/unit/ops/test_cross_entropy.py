"""Cross-entropy on a CPU: summed loss, right answers and gradient, with rows and classes that do not count."""

import pytest
import torch

from megabert.ops.cross_entropy.api import cross_entropy
from megabert.ops.proof.problem import errors
from megabert.ops.proof.problems import cross_entropy_problem

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("shape", "classes"), [((1, 2), 2), ((7, 1), 1), ((50, 1087), 1023), ((0, 5), 5)])
def test_cross_entropy_and_gradient_match_float64_reference(shape, classes, dtype, generator):
    problem = cross_entropy_problem(shape, generator, classes=classes)
    assert max(errors(problem, dtype, backend="torch").values()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_cross_entropy_without_labels_is_exactly_zero(dtype, generator):
    logits = torch.randn(4, 9, generator=generator).to(dtype).requires_grad_()
    loss, correct = cross_entropy(logits, torch.full((4,), -100))
    loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert loss.item() == 0
    assert correct.item() == 0
    assert logits.grad.abs().sum() == 0
