"""sdist and wheel of this checkout, an environment that holds the wheel, and a walk from text to a score in it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "examples" / "corpus" / "public_domain.jsonl"


def call(*words: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command that has to succeed, and return its output."""
    done = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True, timeout=1800, env=env)
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build_dist(folder: Path) -> Path:
    """Build sdist and wheel of the last commit and check them; pip makes the environments of `build` and `twine`."""
    checkout, tools = folder / "checkout", folder / "tools"
    call("git", "clone", "-q", ROOT, checkout, cwd=folder)
    call(sys.executable, "-m", "venv", tools, cwd=folder)
    call(tools / "bin/pip", "install", "-q", "build", "twine", cwd=folder)
    call(tools / "bin/python", "-m", "build", "-o", folder / "dist", checkout, cwd=folder)
    print(call(tools / "bin/twine", "check", "--strict", *(folder / "dist").iterdir(), cwd=folder))
    shutil.rmtree(checkout)
    return folder / "dist"


def from_text_to_a_score(bin_: Path, work: Path, *, steps: Sequence[str]) -> dict[str, float]:
    """Build shards, train, export, load in transformers and fine-tune by installed commands; return the mean scores."""
    work.mkdir()
    shutil.copy(CORPUS, work / "text.jsonl")
    build = ["--for", "debug", "--input", "text.jsonl", "--format", "jsonl", "--vocab-size", "2048", "--output", "data"]
    call(bin_ / "megabert-data", "build", *build, "--validation-share", "0.06", cwd=work)
    run = ["--recipe", "debug", "--data.path", "data", "--run-dir", "run"]
    call(bin_ / "megabert", "pretrain", *run, *steps, cwd=work)
    call(bin_ / "megabert", "export", "run", "--to", "model", cwd=work)
    load = "import transformers; transformers.BertForPreTraining.from_pretrained('model')"
    call(bin_ / "python", "-c", load, cwd=work)

    texts = (("the whale", "sea"), ("the law", "land"))
    rows = [f"{text} number {number},{label}" for number in range(20) for text, label in texts]
    (work / "labelled.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    task = ["classification", "--model", "model", "--data", "labelled.csv", "--output-dir", "scores", "--epochs", "1"]
    call(bin_ / "megabert", "finetune", *task, cwd=work)
    (scores,) = json.loads((work / "scores" / "results.json").read_text())["mean"].values()
    assert 0 <= scores["accuracy"] <= 1
    return scores
