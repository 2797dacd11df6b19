"""Part `agreement`: the same training on the kernels and on torch; how far the losses drift apart.

The reference is torch in float32. The yardstick is torch in bfloat16, in two runs of which one has the sequences of
each batch in reverse order: the same sums in another order. Each of them is one draw, so the kernels, which keep more
in float32, may be 1.5 times as far from the reference as the further one. One seed, at the longest length.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.bars import SIXTEEN_BITS
from benchmarks.gpu.batches import Batch, random_batch
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.training import MegabertStep, model_config

VOCABULARY = 512
"""Few enough pieces that a model learns their order in 100 steps: a loss that does not fall amplifies no error."""
LEARNING_RATE = 2e-3


def losses(
    sizes: Sizes,
    device: torch.device,
    length: int,
    *,
    backend: str,
    dtype: torch.dtype = torch.bfloat16,
    change: Callable[[Batch], Batch] = lambda batch: batch,
) -> list[float]:
    """Train ``sizes.agreement_steps`` steps on sequences of a length and return each step's loss."""
    if device.type == "cpu":
        dtype = torch.float32
    vocabulary, heads = min(VOCABULARY, sizes.vocabulary), max(1, sizes.agreement_hidden // 64)
    config = model_config(
        sizes,
        vocab_size=vocabulary,
        hidden_size=sizes.agreement_hidden,
        intermediate_size=4 * sizes.agreement_hidden,
        num_hidden_layers=sizes.agreement_layers,
        num_attention_heads=heads,
    )
    # Enough sequences that the kernels take the path that they take in training.
    batches = [random_batch(sizes.tokens, length, vocabulary, seed) for seed in range(sizes.agreement_steps)]
    step = MegabertStep(config, change(batches[0]), backend=backend, device=device, dtype=dtype)
    found = []
    for number, batch in enumerate(batches):
        step.learning_rate = LEARNING_RATE * min(1.0, (number + 1) / (0.1 * sizes.agreement_steps))
        step(change(batch))
        found.append(step.loss.clone())
    return torch.stack(found).tolist()


def compare(rows: Rows, first: str, second: str) -> Row:
    """Return the largest and the mean difference of two runs' losses."""
    pairs = list(zip(rows.rows[first]["losses"], rows.rows[second]["losses"], strict=True))
    differences = [abs(left - right) for left, right in pairs]
    return {
        "largest_difference": max(differences),
        "at_step": differences.index(max(differences)) + 1,
        "mean_difference": sum(differences) / len(differences),
        "first_losses": list(pairs[0]),
        "last_losses": list(pairs[-1]),
    }


REFERENCE = "reference"
RUNS: dict[str, dict[str, Any]] = {
    REFERENCE: {"backend": "torch", "dtype": torch.float32},
    "fused": {"backend": "triton"},
    SIXTEEN_BITS[0]: {"backend": "torch"},
    SIXTEEN_BITS[1]: {"backend": "torch", "change": Batch.reversed},
}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part: the runs, and the difference of each from the reference."""
    length = max(sizes.lengths)
    for kind, options in RUNS.items():
        chosen = options if device.type == "cuda" else options | {"backend": "auto"}
        train = partial(losses, sizes, device, length, **chosen)
        rows.measure(f"length {length} {kind}", lambda train=train: {"losses": train()})
    done = [kind for kind in RUNS if "losses" in rows.rows.get(f"length {length} {kind}", {})]
    for kind in done[1:] if REFERENCE in done else ():
        found = partial(compare, rows, f"length {length} {kind}", f"length {length} {REFERENCE}")
        rows.measure(f"length {length} {kind} against reference", found)
