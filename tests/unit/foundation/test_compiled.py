"""Compiled loops give the same bytes compiled just now and taken from the disk."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megabert.foundation.randomness.keyed import mix
from megabert.tokens.masking import MaskingOptions, PieceTable, mask_instances

ROOT = Path(__file__).parents[3]
ASK = "import sys, unit.foundation.test_compiled as t; print(t.masks(), 'scipy.linalg' in sys.modules)"


def masks() -> str:
    """Digest of some masked instances, spans among them."""
    ids = np.random.default_rng(0).integers(5, 900, 4000).astype(np.uint16)
    pieces = PieceTable(cls_id=2, sep_id=3, mask_id=4, vocab_size=1000, is_subword=np.arange(1000) % 4 == 0)
    offsets = np.arange(0, 4001, 100)
    options = MaskingOptions(mask_unit="span")
    masked = mask_instances(ids, offsets, keys=mix(1, np.arange(40)), pieces=pieces, options=options)
    return f"{mix(*masked.ids_T.tolist())} {masked.positions_M.sum()} {masked.offsets[-1]}"


def ask(cache: Path) -> str:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.soak
def test_bytes_do_not_depend_on_what_is_kept_and_need_no_scipy(tmp_path):
    cold = ask(tmp_path)
    kept = sorted(tmp_path.rglob("*.nbc"))
    assert kept
    stamps = [path.stat().st_mtime_ns for path in kept]
    assert ask(tmp_path) == cold == f"{masks()} False"
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*.nbc"))] == stamps  # taken, not made again
