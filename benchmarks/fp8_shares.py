"""Trains in fp8 and counts by layer the values that 8 bits lose: those that become zero or saturate.

    python -m benchmarks.fp8_shares pretrain --recipe demo_modern --data.path DATA --run-dir RUN --precision fp8
    python -m benchmarks.fp8_shares --frozen pretrain ...      # all scales are 1: what the shares are without any
    python -m benchmarks.fp8_shares --gradients e5m2 pretrain ...

The words after the options are those of ``megabert``. BERT and ModernBERT: their layers call four dense layers in turn.
"""

import argparse
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from megabert.cli import main
from megabert.foundation.text_tables import render_table
from megabert.models.layers import Dense
from megabert.ops import dense, fp8

PLACES = ("QKV", "attention output", "feed-forward in", "feed-forward out")
TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FACTORS = ("activations", "weight", "gradients")


class Shares:
    """Counts of values by layer and factor: all that are not 0, those that become 0, and those that saturate."""

    def __init__(self, *, every: int) -> None:
        self.every, self.calls = every, 0
        self.counts: dict[tuple[int, str], Tensor] = defaultdict(lambda: torch.zeros(3, dtype=torch.int64))
        self.layers: dict[int, int] = {}

    def note_layer(self, module: nn.Module, _: Any) -> None:
        """Number the dense layers in the order of their first calls; a hook before each module's forward pass."""
        if isinstance(module, Dense) and module.in_fp8:
            self.layers.setdefault(module.weight.data_ptr(), len(self.layers))

    def product(self, left: Tensor, right: Tensor, bias: Tensor | None = None, *, dtype: torch.dtype) -> Tensor:
        """Multiply as ``row_product`` does; in one micro-step of ``every``, count first."""
        is_forward = right.is_contiguous()
        self.calls += is_forward
        if self.calls // len(self.layers) % self.every == 0:
            layer = self.layers[right.data_ptr()]
            self._count(layer, FACTORS[0] if is_forward else FACTORS[2], left, dtype)
            if is_forward:
                self._count(layer, FACTORS[1], right, fp8.FORWARD)
        return fp8.row_product(left, right, bias, dtype=dtype)

    def _count(self, layer: int, factor: str, rows: Tensor, dtype: torch.dtype) -> None:
        values, scales = fp8.cast_rows(rows, dtype)
        scaled, is_value = (rows.float() / scales).abs(), rows != 0
        vanish = (values.float() == 0) & is_value
        saturate = scaled > torch.finfo(dtype).max
        self.counts[layer, factor] += torch.stack([part.sum() for part in (is_value, vanish, saturate)])

    def render(self) -> str:
        """Return the shares as a table."""
        rows = []
        for (layer, factor), counts in sorted(
            self.counts.items(), key=lambda item: (item[0][0], FACTORS.index(item[0][1]))
        ):
            values, *lost = counts.tolist()
            rows.append(
                [f"{layer // 4}", PLACES[layer % 4], factor, *(f"{100 * part / max(1, values):.4f}%" for part in lost)]
            )
        return render_table(rows, headers=["layer", "product", "factor", "vanish", "saturate"], align="rllrr")


def run() -> int:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fp8_shares", description=__doc__)
    parser.add_argument("--frozen", action="store_true", help="all scales are 1")
    parser.add_argument("--gradients", choices=TYPES, default="e4m3", help="type of gradients")
    parser.add_argument("--every", type=int, default=10, help="count every N-th micro-step (10)")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="words of megabert")
    options = parser.parse_args()
    shares = Shares(every=options.every)
    if options.frozen:
        fp8.scales_of = lambda rows, dtype: torch.ones(len(rows), 1)
    gradients = TYPES[options.gradients]

    def multiply(
        left: Tensor, right: Tensor, bias: Tensor | None = None, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        return shares.product(left, right, bias, dtype=fp8.FORWARD if dtype is None else gradients)

    dense.row_product = multiply  # type: ignore[assignment]
    nn.modules.module.register_module_forward_pre_hook(shares.note_layer)
    code = main(options.words)
    print(shares.render())
    return code


if __name__ == "__main__":
    raise SystemExit(run())
