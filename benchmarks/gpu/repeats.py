"""Part `repeats`: the same inputs give the same bits, op by op and for all gradients of a model.

Atomic sums, a missing barrier or a library that picks another algorithm show as a row that differs in some of its
runs. A resumed run equals an undisturbed one only if there is none.
"""

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.batches import Batch, random_batch
from benchmarks.gpu.parity import parity_problems
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.training import model_config, random_model
from benchmarks.gpu.warm import compile_beside
from megabert.ops.dense import sum_products_in
from megabert.ops.proof.problem import Problem, values_and_gradients
from megabert.ops.proof.problems import GradientSum
from megabert.settings.config.run import OpsConfig

RUNS, LARGE_RUNS = 50, 5
DTYPE = torch.bfloat16


def count_differences(run: Callable[[], dict[str, Tensor]], runs: int) -> Row:
    """Return how many of ``runs`` gave other bits than the first one, and which tensors did."""
    first = {name: value.detach().clone() for name, value in run().items()}
    differences: Counter[str] = Counter()
    for _ in range(runs - 1):
        for name, value in run().items():
            if not torch.equal(value, first[name]):
                differences[name] += 1
    row: Row = {"runs": runs, "tensors": len(first), "passes": not differences}
    return row | ({"differing": dict(differences.most_common(8))} if differences else {})


def gradients_of(model: nn.Module, sums: dict[str, GradientSum], batch: Batch, micro_steps: int) -> dict[str, Tensor]:
    """Return all gradients of a few micro-steps on one batch, as training accumulates them, and the loss."""
    model.zero_grad(set_to_none=True)
    for weight_sum in sums.values():
        weight_sum.is_first = True
    losses = []
    for _ in range(micro_steps):
        output = model(batch)
        loss = output.mlm_loss_sum / batch.masked_ids_M.numel() + output.nsp_loss_sum / len(batch.next_sentence_label_B)
        loss.backward()
        losses.append(loss.detach())
    found = {f"{name}, products": value.total for name, value in sums.items() if not value.is_first}
    named = model.named_parameters()
    return {"loss": torch.stack(losses)} | found | {name: p.grad for name, p in named if p.grad is not None}


def model_row(device: torch.device, batch: Batch, changes: dict[str, Any], sizes: Sizes, runs: int) -> Row:
    """Return whether a model's gradients repeat."""
    backend: Any = "triton" if device.type == "cuda" else "auto"
    options: dict[str, Any] = dict.fromkeys(("layer_norm", "attention", "bias_gelu", "cross_entropy"), backend)
    dtype = DTYPE if device.type == "cuda" else torch.float32
    model = random_model(model_config(sizes, **changes), OpsConfig(**options), device).to(dtype)
    sums = {name: GradientSum(parameter) for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        sum_products_in(parameter, sums[name])
    return count_differences(functools.partial(gradients_of, model, sums, batch.to(device), 2), runs)


SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}


def op_runs(sizes: Sizes, generator: torch.Generator) -> dict[str, Callable[[], dict[str, Tensor]]]:
    """Return what runs each op of `parity` both ways, in bfloat16 or the only dtype that it takes."""
    backend = "triton" if generator.device.type == "cuda" else "auto"

    def run(problem: Problem) -> Callable[[], dict[str, Tensor]]:
        dtype = DTYPE if DTYPE in problem.tolerance else next(iter(problem.tolerance))
        tensors = {name: tensor.to(dtype) for name, tensor in problem.tensors.items()}
        return functools.partial(values_and_gradients, functools.partial(problem.run, backend=backend), tensors)

    return {label: run(problem) for label, problem in parity_problems(sizes, generator).items()}


def compile_share(sizes: Sizes, number: int, of: int) -> None:
    """Run every ``of``-th op for the sake of its kernels."""
    for run in list(op_runs(sizes, torch.Generator("cuda")).values())[number::of]:
        with contextlib.suppress(Exception):
            run()
            torch.cuda.synchronize()


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part: models, small and as they are, then every op."""
    compile_beside(compile_share, (sizes,), limit_s=0.6 * rows.remaining_s())
    for length, (name, changes, share) in itertools.product(sizes.lengths, (("small", SMALL, 4), ("large", {}, 1))):
        batch = random_batch(sizes.tokens // share, length, sizes.vocabulary, 0)
        runs = RUNS if changes else LARGE_RUNS
        row = functools.partial(model_row, device, batch, changes, sizes, runs)
        rows.measure(f"gradients of a {name} model at {length}", row)
    generator = torch.Generator(device)
    generator.seed()
    for label, run in op_runs(sizes, generator).items():
        rows.measure(label, functools.partial(count_differences, run, RUNS))
