"""Lookups in a table, a problem of the parts `parity` and `repeats`, and the sum of a weight's gradients."""

# T packed tokens, R rows of a table, D width, O outputs, I inputs

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.dense import add_product_, embedding, sum_products_in
from megabert.ops.proof.problem import TOLERANCE, Problem
from megabert.ops.proof.problems import normal


class GradientSum:
    """The float32 sum of a weight's gradients, as a bucket keeps it."""

    def __init__(self, weight: Tensor) -> None:
        self.total = torch.full_like(weight, torch.nan, dtype=torch.float32)
        self.is_first = True

    def __call__(self, left_OT: Tensor, right_TI: Tensor) -> None:
        """Add a product, or begin with it."""
        add_product_(self.total, left_OT, right_TI, is_first=self.is_first)
        self.is_first = False


def embedding_problem(shape: tuple[int, int], generator: torch.Generator, *, rows: int, has_sum: bool) -> Problem:
    """Return a table of ``rows``, looked up for (tokens, width), and its gradient, for which it may have a sum.

    On a GPU the gradient of few rows is a product, which goes to the sum. On a CPU it is torch's own, which adds up
    16 bits in 16 bits and is compared in float32 only.
    """
    (tokens, width), device = shape, generator.device
    ids_T = torch.randint(0, rows, (tokens,), generator=generator, device=device)

    def run(table_RD: Tensor, grad_TD: Tensor, *, backend: str) -> dict[str, Tensor]:
        gradient_sum = GradientSum(table_RD)
        if has_sum:
            sum_products_in(table_RD, gradient_sum)
        out_TD = embedding(ids_T, table_RD)
        out_TD.backward(grad_TD.detach())
        return {"out": out_TD, "gradient": gradient_sum.total if table_RD.grad is None else table_RD.grad}

    def reference(table_RD: Tensor, grad_TD: Tensor) -> dict[str, Tensor]:
        out_TD = functional.embedding(ids_T, table_RD)
        (gradient_RD,) = torch.autograd.grad(out_TD, table_RD, grad_TD.detach())
        return {"out": out_TD, "gradient": gradient_RD}

    tensors = normal(generator, table_RD=(rows, width), grad_TD=(tokens, width))
    in_float32 = {torch.float32: TOLERANCE[torch.float32]}
    return Problem(run, reference, tensors, TOLERANCE if device.type == "cuda" else in_float32)
