"""Folders of a model in the making, and the commands that make it."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Where everything of a language is."""

    texts: Path
    data: Path
    """Vocabulary and shards."""
    run: Path
    exported: Path
    log: Path
    """The stretches of the training, a JSON object each."""
    scores: Path
    """What was measured, a folder for each state of the weights."""
    packages: Path
    """Downloads, for all languages."""
    labelled: Path
    """Sets of the small tasks."""
    model: Path
    """The model that is shipped."""


def folders_of(language: str, work: Path, models: Path) -> Folders:
    """Return the folders of a language below a working folder and the folder of the models."""
    own = work / language
    return Folders(
        texts=work / "texts" / language,
        data=own / "data",
        run=own / "run",
        exported=own / "exported",
        log=own / "stretches.jsonl",
        scores=own / "scores",
        packages=work / "packages",
        labelled=work / "labelled",
        model=models / language,
    )


def call(module: str, *words: object) -> None:
    """Run a command of the project in a process of its own, in the folder of the repository.

    Raises:
        SystemExit: It failed, which it has explained.
    """
    if code := subprocess.run([sys.executable, "-m", module, *map(str, words)], cwd=ROOT).returncode:
        raise SystemExit(code)
