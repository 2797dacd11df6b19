"""``python -m integration.programs.apart``: megabert, a run of its own on each rank, ``RUN0`` and ``RUN1``."""

import os
import sys

from megabert.cli import main

if __name__ == "__main__":
    sys.argv[sys.argv.index("--run-dir") + 1] += os.environ["RANK"]
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    sys.exit(main())
