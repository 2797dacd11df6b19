"""Part `repeats`: the same inputs give the same bits, op by op and for all gradients of a model.

Atomic sums, a missing barrier or a library that picks another algorithm show as a row that differs in some of its
runs. A resumed run equals an undisturbed one only if there is none. The one run on a card that differed did so in one
bfloat16 element, at length 512 after 23 equal steps: such a rate, 1.5% of the steps, takes 300 runs to be found.
"""

import functools
import hashlib
import itertools
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.gpu.batches import Batch, random_batch
from benchmarks.gpu.embedding_problem import GradientSum, embedding_problem
from benchmarks.gpu.parity import parity_problems
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.training import model_config, random_model
from megabert.ops.dense import sum_products_in
from megabert.ops.proof.problem import Problem, values_and_gradients
from megabert.settings.config.run import OpsConfig

DTYPE = torch.bfloat16
WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""NVIDIA's setting for products that repeat even if several streams use cuBLAS; megabert has one stream."""


def count_differences(run: Callable[[], dict[str, Tensor]], runs: int, *, verdict: str = "passes") -> Row:
    """Return how many of ``runs`` gave other bits than the first one, and which tensors did."""
    first = {name: value.detach().clone() for name, value in run().items()}
    differences: Counter[str] = Counter()
    for _ in range(runs - 1):
        for name, value in run().items():
            if not torch.equal(value, first[name]):
                differences[name] += 1
    row: Row = {"runs": runs, "tensors": len(first), verdict: not differences}
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


SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
WIDTH = 128


def model_row(sizes: Sizes) -> Row:
    """Return whether a small model's gradients repeat at the longest length, and a hash of them."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backend, dtype = ("triton", DTYPE) if device.type == "cuda" else ("auto", torch.float32)
    options: dict[str, Any] = dict.fromkeys(("layer_norm", "attention", "bias_gelu", "cross_entropy"), backend)
    model = random_model(model_config(sizes, **SMALL), OpsConfig(**options), device).to(dtype)
    sums = {name: GradientSum(parameter) for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        sum_products_in(parameter, sums[name])
    batch = random_batch(sizes.tokens // 4, max(sizes.lengths), sizes.vocabulary, 0).to(device)
    run = functools.partial(gradients_of, model, sums, batch, 2)
    digest = hashlib.sha256()
    for tensor in run().values():
        digest.update(tensor.detach().float().cpu().numpy().tobytes())
    return count_differences(run, sizes.repeats) | {"sha256": digest.hexdigest()[:16]}


def workspace_row(sizes: Sizes, default: Row) -> Row:
    """Return the same of a process whose cuBLAS has a fixed workspace, and whether both have the same gradients."""
    with mock.patch.dict(os.environ, WORKSPACE), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        row = pool.submit(model_row, sizes).result()
    return row | {"equals_default": row["sha256"] == default["sha256"]}


def table_rows(rows: Rows, sizes: Sizes, generator: torch.Generator) -> None:
    """Fill the rows of tables' gradients: ours, and torch's own, of which differences are a finding.

    Torch has a kernel for up to 3,072 tokens, which ignores its deterministic flag, and another one for more.
    """
    tables = {"words": sizes.vocabulary, "positions": max(sizes.lengths), "segments": 2}
    for tokens, (name, count) in itertools.product((2048, 7280), tables.items()):
        problem = embedding_problem((tokens, WIDTH), generator, rows=count, has_sum=False)
        tensors = {tensor: value.to(DTYPE) for tensor, value in problem.tensors.items()}
        ours = functools.partial(values_and_gradients, functools.partial(problem.run, backend="auto"), tensors)
        rows.measure(f"gradient of {name}, {tokens} tokens", functools.partial(count_differences, ours, sizes.repeats))
        if name == "segments":
            theirs = functools.partial(values_and_gradients, problem.reference, tensors)
            row = functools.partial(count_differences, theirs, sizes.repeats, verdict="repeats")
            rows.measure(f"gradient of {name}, {tokens} tokens, torch's own", row)


def op_runs(sizes: Sizes, generator: torch.Generator) -> dict[str, Callable[[], dict[str, Tensor]]]:
    """Return what runs each op of `parity` both ways, in bfloat16 or the only dtype that it takes."""
    backend = "triton" if generator.device.type == "cuda" else "auto"

    def run(problem: Problem) -> Callable[[], dict[str, Tensor]]:
        dtype = DTYPE if DTYPE in problem.tolerance else next(iter(problem.tolerance))
        tensors = {name: tensor.to(dtype) for name, tensor in problem.tensors.items()}
        return functools.partial(values_and_gradients, functools.partial(problem.run, backend=backend), tensors)

    return {label: run(problem) for label, problem in parity_problems(sizes, generator).items()}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part: a small model, tables, then every op; `parity` has compiled their kernels."""
    generator = torch.Generator(device)
    generator.seed()
    model = f"gradients of a small model at {max(sizes.lengths)}"
    default = rows.measure(model, functools.partial(model_row, sizes))
    if "sha256" in (default or {}):
        rows.measure(f"{model}, fixed workspace", functools.partial(workspace_row, sizes, default))
    table_rows(rows, sizes, generator)
    for label, run in op_runs(sizes, generator).items():
        rows.measure(label, functools.partial(count_differences, run, sizes.repeats // 6))
