"""``python -m integration.programs.two_runs FOLDER SETTINGS``: on each rank, one pre-training after the other."""

import ast
import os
import sys
from pathlib import Path

from megabert.library import pretrain

if __name__ == "__main__":
    folder, settings = Path(sys.argv[1]), ast.literal_eval(sys.argv[2])
    for name in ("first", "second"):
        run = pretrain(run_dir=folder / name, device="cpu", **settings)
        (folder / f"{name}-{os.environ['RANK']}").write_text(f"{run.is_done} {run.checkpoints[-1]}")
