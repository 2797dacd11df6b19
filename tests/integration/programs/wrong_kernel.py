"""``python -m integration.programs.wrong_kernel``: megabert whose kernels of attention have one wrong constant.

Tests start it in place of ``python -m megabert``, with TRITON_INTERPRET=1. Results look right, as with another seed:
the constant is one of dropout's hash.
"""

import sys

from unit.ops.interpreted.conftest import FOR_NUMPY_2_4

from megabert.cli import main
from megabert.ops.triton_support import device_functions

assert FOR_NUMPY_2_4

if __name__ == "__main__":
    device_functions.KEY_STEP = type(device_functions.KEY_STEP)(device_functions.KEY_STEP.value + 2)
    sys.exit(main())
