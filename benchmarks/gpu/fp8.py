"""Part `fp8`: the rows of `training` with the products of the layers in 8 bits, as ``precision: fp8`` trains."""

import torch

from benchmarks.gpu import training
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes
from megabert.ops.fp8 import obstacle


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part, or say in one why the card cannot."""
    if reason := obstacle(device, (sizes.hidden, sizes.intermediate)):

        def refuse() -> Row:
            raise RuntimeError(reason)

        rows.measure("products in 8 bits", refuse, is_peer=True)
    else:
        training.measure(rows, device, sizes, in_fp8=True)
