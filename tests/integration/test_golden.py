"""The debug recipe's losses over its first 50 steps: a change that moves them is no refactoring.

To renew the curve after a change that is meant to move it: ``python tests/integration/test_golden.py``.
"""

import json
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "assets" / "golden_debug.json"
# Sums in another order (threads, vector widths) differ by 1e-7 a step, and 50 steps of LAMB amplify that.
TOLERANCE = 2e-3
FLAGS = {"phases.0.steps": 40, "phases.1.steps": 10, "phases.0.global_batch_size": 8, "phases.1.global_batch_size": 4}


def run_recipe(shards: Path, folder: Path) -> dict[int, float]:
    """Train the recipe's own model and schedule on shards of lengths 64 and 128."""
    from support.runs import TINY, finished

    own = dict.fromkeys(name for name in TINY if not name.startswith(("phases", "logging")))
    return finished(folder / "golden", shards, flags={**own, **FLAGS, "seed": 1234}).losses()


def test_debug_recipe_follows_its_golden_losses(shards, tmp_path):
    golden = {int(step): loss for step, loss in json.loads(GOLDEN.read_text()).items()}
    losses = run_recipe(shards, tmp_path)
    assert losses.keys() == golden.keys()
    for step, loss in golden.items():
        assert losses[step] == pytest.approx(loss, rel=TOLERANCE), f"step {step}"


if __name__ == "__main__":
    import tempfile

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.bundled_corpus import build_shards, small_corpus

    with tempfile.TemporaryDirectory() as folder:
        data = build_shards(small_corpus(Path(folder)), Path(folder) / "data")
        GOLDEN.write_text(json.dumps(run_recipe(data, Path(folder)), indent=0) + "\n")
