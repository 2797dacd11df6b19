"""Trains in fp8 and counts by layer the values that 8 bits lose: those that become zero or saturate.

    python -m benchmarks.fp8_shares pretrain --recipe demo_modern --data.path DATA --run-dir RUN --precision fp8
    python -m benchmarks.fp8_shares --scales tensor pretrain ...   # one per tensor, from earlier micro-steps
    python -m benchmarks.fp8_shares --scales one pretrain ...      # all are 1: what the shares are without any
    python -m benchmarks.fp8_shares --gradients e5m2 pretrain ...

The words after the options are those of ``megabert``. BERT and ModernBERT: their layers call four dense layers in turn.
"""

import argparse
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from megabert.cli import main
from megabert.foundation.text_tables import render_table
from megabert.models.layers import Dense
from megabert.ops import dense, fp8

PLACES = ("QKV", "attention output", "feed-forward in", "feed-forward out")
TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FACTORS = ("activations", "weight", "gradients")
HISTORY = 16
"""Micro-steps whose largest values a scale per tensor is made of."""
Key = tuple[int, str, bool]
"""Number of a dense layer, factor, and whether it is the forward pass."""


class TensorScales:
    """One scale per tensor, from its largest values in the last micro-steps: Transformer Engine's delayed scaling."""

    def __init__(self) -> None:
        self.largest: dict[Key, deque[Tensor]] = defaultdict(lambda: deque(maxlen=HISTORY))

    def cast(self, key: Key, rows: Tensor, dtype: torch.dtype) -> fp8.Cast:
        """Return values, those that are too large cut off, and the scale for each row; then remember the largest."""
        largest, limit = rows.abs().amax().float(), torch.finfo(dtype).max
        before = self.largest[key]
        scale = (torch.stack([*before] or [largest]).amax() / limit).clamp(min=torch.finfo(torch.float32).tiny)
        before.append(largest)
        return (rows.float() / scale).clamp(-limit, limit).to(dtype), scale.expand(len(rows), 1)


def cast_by_row(key: Key, rows: Tensor, dtype: torch.dtype) -> fp8.Cast:
    """Cast as a run does, whose type is given."""
    with mock.patch.object(fp8, "TYPE", dtype):
        return fp8.cast_rows(rows)


class Shares:
    """Counts of values by layer and factor: all that are not 0, those that become 0, and those that saturate."""

    def __init__(
        self, cast: Callable[[Key, Tensor, torch.dtype], fp8.Cast], *, gradients: torch.dtype, every: int
    ) -> None:
        self.cast, self.gradients, self.every, self.calls = cast, gradients, every, 0
        self.counts: dict[tuple[int, str], Tensor] = defaultdict(lambda: torch.zeros(3, dtype=torch.int64))
        self.layers: dict[int, int] = {}

    def note_layer(self, module: nn.Module, _: Any) -> None:
        """Number the dense layers in the order of their first calls; a hook before each module's forward pass."""
        if isinstance(module, Dense) and module.in_fp8:
            self.layers.setdefault(module.weight.data_ptr(), len(self.layers))

    def product(self, left: Tensor, right: Tensor, bias: Tensor | None = None, **_: Any) -> Tensor:
        """Multiply as ``row_product`` does; in one micro-step of ``every``, count first."""
        is_forward = right.is_contiguous()
        self.calls += is_forward
        counts = self.calls // len(self.layers) % self.every == 0
        layer = self.layers[right.data_ptr()]
        first = {FACTORS[0]: (left, fp8.TYPE)} if is_forward else {FACTORS[2]: (left, self.gradients)}
        factors = first | {FACTORS[1]: (right, fp8.TYPE)}
        casts = []
        for factor, (rows, kind) in factors.items():
            cast = self.cast((layer, factor, is_forward), rows, kind)
            casts.append(cast)
            if counts and (is_forward or factor == FACTORS[2]):
                self._count(layer, factor, rows, cast)
        return fp8.row_product(left, right, bias, left_cast=casts[0], right_cast=casts[1])

    def _count(self, layer: int, factor: str, rows: Tensor, cast: fp8.Cast) -> None:
        values, scales = cast
        scaled, is_value = (rows.float() / scales).abs(), rows != 0
        vanish = (values.float() == 0) & is_value
        saturate = scaled > torch.finfo(values.dtype).max
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
    parser.add_argument(
        "--scales", choices=("rows", "tensor", "one"), default="rows", help="what a scale is of; one: all are 1"
    )
    parser.add_argument("--gradients", choices=TYPES, default="e4m3", help="type of gradients")
    parser.add_argument("--every", type=int, default=10, help="count every N-th micro-step (10)")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="words of megabert")
    options = parser.parse_args()
    if options.scales == "one":
        fp8.scales_of = lambda rows: torch.ones(len(rows), 1)
    cast = TensorScales().cast if options.scales == "tensor" else cast_by_row
    shares = Shares(cast, gradients=TYPES[options.gradients], every=options.every)
    dense.row_product = shares.product  # type: ignore[assignment]
    nn.modules.module.register_module_forward_pre_hook(shares.note_layer)
    code = main(options.words)
    print(shares.render())
    return code


if __name__ == "__main__":
    raise SystemExit(run())
