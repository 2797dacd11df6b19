"""Part `agreement`: the same training on the kernels and on torch; how far the losses drift apart.

The yardstick is a third run on torch with the sequences of each batch in reverse order: the same sums in another order.
"""

from collections.abc import Callable

import torch

from benchmarks.gpu.batches import Batch, random_batch
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.training import MegabertStep, model_config


def losses(
    sizes: Sizes, device: torch.device, length: int, *, backend: str, change: Callable[[Batch], Batch]
) -> list[float]:
    """Train ``sizes.agreement_steps`` steps on sequences of a length and return each step's loss."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    heads = max(1, sizes.agreement_hidden // 64)
    config = model_config(
        sizes,
        hidden_size=sizes.agreement_hidden,
        intermediate_size=4 * sizes.agreement_hidden,
        num_hidden_layers=sizes.agreement_layers,
        num_attention_heads=heads,
    )
    # At the longest length as many sequences as the kernels need to take the path that they take in training.
    tokens = sizes.tokens if length == max(sizes.lengths) else sizes.tokens // 4
    batches = [random_batch(tokens, length, sizes.vocabulary, seed) for seed in range(sizes.agreement_steps)]
    step = MegabertStep(config, change(batches[0]), backend=backend, device=device, dtype=dtype)
    found = []
    for number, batch in enumerate(batches):
        step.learning_rate = 4e-3 * min(1.0, (number + 1) / (0.1 * sizes.agreement_steps))
        step(change(batch))
        found.append(step.loss.clone())
    return torch.stack(found).tolist()


def compare(rows: Rows, first: str, second: str) -> Row:
    """Return the largest difference of two runs' losses."""
    pairs = list(zip(rows.rows[first]["losses"], rows.rows[second]["losses"], strict=True))
    differences = [abs(left - right) for left, right in pairs]
    return {
        "largest_difference": max(differences),
        "at_step": differences.index(max(differences)) + 1,
        "last_losses": list(pairs[-1]),
        "first_losses": list(pairs[0]),
    }


FUSED, REFERENCE, REORDERED = "fused", "reference", "reference, sequences reversed"


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part."""
    for length in sizes.lengths:
        measure_length(rows, device, sizes, length)


def measure_length(rows: Rows, device: torch.device, sizes: Sizes, length: int) -> None:
    """Fill the rows of one length: three runs, and their differences."""
    fused = "triton" if device.type == "cuda" else "auto"
    runs = {
        FUSED: (fused, lambda batch: batch),
        REFERENCE: ("torch", lambda batch: batch),
        REORDERED: ("torch", Batch.reversed),
    }
    names = {kind: f"length {length} {kind}" for kind in runs}
    for kind, (backend, change) in runs.items():
        rows.measure(
            names[kind],
            lambda backend=backend, change=change: {
                "losses": losses(sizes, device, length, backend=backend, change=change)
            },
        )
    if all("losses" in rows.rows.get(name, {}) for name in names.values()):
        rows.measure(f"length {length} fused against reference", lambda: compare(rows, names[FUSED], names[REFERENCE]))
        rows.measure(
            f"length {length} spread of two references", lambda: compare(rows, names[REFERENCE], names[REORDERED])
        )
