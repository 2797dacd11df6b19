"""A problem compares one backend of an op with the op's definition in float64: values, every gradient, masks."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}
"""Largest ||value - reference|| / ||reference|| by dtype; 16 bits keep 8 or 11 significant ones."""
EXACT = dict.fromkeys(TOLERANCE, 0.0)
"""Tolerances of masks and keys, which are equal bit for bit."""
Values = Tensor | dict[str, Tensor]
Op = Callable[..., Values]


@dataclass(frozen=True)
class Problem:
    """One op on one set of inputs.

    A ``run`` that returns a tensor is differentiated by each input. One that returns tensors by name is compared as it
    is: the masks of a forward and a backward pass, or the results of an op without gradients.
    """

    run: Op
    """Named tensors and ``backend`` -> result."""
    reference: Op
    """Named tensors in float64 -> the same result."""
    tensors: dict[str, Tensor]
    """Float32 inputs; a run rounds them to its dtype."""
    tolerance: Mapping[torch.dtype, float] = field(default_factory=lambda: TOLERANCE)
    """Largest relative error by dtype of the inputs; the op takes no other dtypes."""


def relative_error(value: Tensor, expected: Tensor) -> float:
    """Return ||value - expected|| / ||expected||; NaN in ``value`` gives NaN, which no bound admits."""
    expected = expected.double()
    return float((value.detach().double() - expected).norm() / expected.norm().clamp(min=1e-30))


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill what ``torch.empty`` returns with NaN, so that an element which no kernel writes is seen."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms would import torch's compiler: 1.3 s
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def errors(problem: Problem, dtype: torch.dtype, *, backend: str) -> dict[str, float]:
    """Return the relative error of ``out`` and of each input's gradient, or of each result, by name."""
    rounded = {name: tensor.to(dtype) for name, tensor in problem.tensors.items()}
    with poisoned_memory():
        ours = values_and_gradients(functools.partial(problem.run, backend=backend), rounded)
    exact = {name: tensor.double() for name, tensor in rounded.items()}
    theirs = values_and_gradients(problem.reference, exact)
    return {name: relative_error(value, theirs[name]) for name, value in ours.items()}


def values_and_gradients(op: Op, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the result of an op as ``out``, and the gradient of each input, or the results that have names."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    out = op(**leaves)
    if isinstance(out, dict):
        return out
    # the same numbers for both sides: rounded to 16 bits, exact in float64
    generator = None if out.is_meta else torch.Generator(out.device).manual_seed(out.numel())
    grad = torch.randn(out.shape, generator=generator, device=out.device).to(torch.bfloat16)
    out.backward(grad.to(out.dtype))
    return {"out": out.detach()} | {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
