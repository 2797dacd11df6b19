"""Part `speedrun`: from a small archive of text to a BERT and its score on SNLI, by speedrun.sh."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.runs import ROOT, run
from benchmarks.gpu.sizes import TINY, Sizes

SCRIPT = ROOT / "benchmarks" / "gpu" / "speedrun.sh"
SCORES = ("held_out_loss", "snli_accuracy", "snli_accuracy_random")
KEYS = ("card", "minutes", "tokens", *SCORES, "tokens_per_s", "commit")


def speedrun_row(folder: Path, limit_s: float, is_tiny: bool) -> Row:
    """Run the script with this Python, and return the row that it left in ``speedrun.json``."""
    found = folder / "speedrun.json"
    found.unlink(missing_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["env", f"PATH={path}", "bash", str(SCRIPT), str(folder), *(["--tiny"] if is_tiny else [])]
    run(command, folder / "speedrun.log", limit_s)
    row = json.loads(found.read_text())
    return {key: row[key] for key in KEYS}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the row of the part, which has its own limit however much time the parts before it have left."""
    folder, is_tiny = rows.path.parents[1] / "runs" / "speedrun", sizes is TINY
    limit_s = rows.remaining_s() if is_tiny else min(rows.remaining_s(), PARTS["speedrun"].limit_s)
    rows.measure("speed run", partial(speedrun_row, folder, limit_s, is_tiny))
