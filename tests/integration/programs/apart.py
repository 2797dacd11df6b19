"""``python -m integration.programs.apart``: megabert on ranks with run folders of their own, ``RUN0`` and ``RUN1``.

Pre-trainings are runs of their own as well. Each rank's exit code is in ``RUN0.code`` or ``RUN1.code``.
"""

import os
import sys
from pathlib import Path

from megabert.cli import main

if __name__ == "__main__":
    place = sys.argv.index("--run-dir") + 1
    sys.argv[place] += os.environ["RANK"]
    if "pretrain" in sys.argv:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]
    code = main()
    Path(f"{sys.argv[place]}.code").write_text(str(code))
    sys.exit(code)
