"""Cross-entropy on a CPU: summed loss, right answers and gradient, with rows and classes that do not count."""

import pytest
import torch
from torch.nn import functional

from megabert.ops.cross_entropy.api import cross_entropy
from megabert.ops.proof.problem import errors
from megabert.ops.proof.problems import cross_entropy_problem

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def inputs(shape, dtype, generator):
    logits = (4 * torch.randn(shape, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(shape[1], (shape[0],), generator=generator)
    labels[::3] = -100
    return logits, labels


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 2), (7, 1), (50, 1023), (0, 5)])
def test_cross_entropy_and_gradient_match_float64_reference(shape, dtype, generator):
    problem = cross_entropy_problem(shape, generator, classes=shape[1])
    assert max(errors(problem, dtype, backend="torch").values()) < TOLERANCE[dtype]


def test_cross_entropy_matches_torch_and_excludes_infinite_classes(generator):
    logits, labels = inputs((20, 30), torch.float32, generator)
    padded = functional.pad(logits.detach(), (0, 34), value=-torch.inf).requires_grad_()
    loss, correct = cross_entropy(padded, labels)
    loss.backward()
    expected = functional.cross_entropy(logits, labels, reduction="sum")
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(padded.grad[:, :30], logits.grad)
    assert padded.grad[:, 30:].abs().sum() == 0
    assert correct == (logits.argmax(1) == labels).sum()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_cross_entropy_without_labels_is_exactly_zero(dtype, generator):
    logits, _ = inputs((4, 9), dtype, generator)
    loss, correct = cross_entropy(logits, torch.full((4,), -100))
    loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert loss.item() == 0
    assert correct.item() == 0
    assert logits.grad.abs().sum() == 0
