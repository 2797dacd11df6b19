"""``python -m integration.programs.wrong_kernel``: megabert with a backend of bias_gelu whose results are 1% too large.

Tests start it in place of ``python -m megabert``. Wrong constants in real kernels are planted by
``unit/ops/interpreted/kernels_first_run.py``.
"""

import sys

from megabert.cli import main
from megabert.ops import backend
from megabert.ops.bias_gelu.cpu import bias_gelu_torch


def wrong(x_TF, bias_F, *, approximate):
    return bias_gelu_torch(x_TF, bias_F, approximate=approximate) * 1.01


if __name__ == "__main__":
    planted = backend.Backend("planted", wrong, backend.no_obstacle)
    backend.BACKENDS["bias_gelu"] = (planted, *backend.BACKENDS["bias_gelu"])
    sys.exit(main())
