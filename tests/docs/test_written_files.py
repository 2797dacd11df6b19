"""What the documented commands write into a clone is ignored by git: `git status` stays clean after the first day."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("slurm/*.sh")]
FLAG = re.compile(r"--(?:output|output-dir|run-dir|html|png|local-dir)[ =](?!\w+://)([a-z][\w./-]*)")
DEFAULT = re.compile(r"^(?:OUTPUT|DATA|RUN_DIR)=\$\{\w+:-([a-z][\w./-]*)", re.MULTILINE)
FOLDER = re.compile(r"Path\(\"([a-z]\w*)\"\)\.mkdir")


def test_outputs_of_documented_commands_are_ignored():
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    written = {name for text in texts for pattern in (FLAG, DEFAULT, FOLDER) for name in pattern.findall(text)}
    assert {"data/demo", "runs/mrpc", "raw", "report.html"} <= written
    paths = sorted(f"{name}/x" if "." not in name else name for name in {*written, "pretrain-17.log", "models/a"})
    ignored = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True, check=False)
    assert set(paths) - set(ignored.stdout.splitlines()) == set()
