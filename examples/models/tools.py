"""Folders of a model in the making, and the commands that make it."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"


@dataclass(frozen=True)
class Folders:
    """Where everything of a language is."""

    work: Path
    models: Path
    language: str
    recipe: str

    @property
    def texts(self) -> Path:
        return self.work / "texts" / self.language

    @property
    def data(self) -> Path:
        return self.work / self.language / "data"

    @property
    def run(self) -> Path:
        return self.work / self.language / "run"

    @property
    def log(self) -> Path:
        return self.work / self.language / "stretches.jsonl"

    @property
    def scores(self) -> Path:
        """What was measured, a JSON file for each kind of score."""
        return self.work / self.language / "scores"

    @property
    def model(self) -> Path:
        return self.models / self.language


def call(module: str, *words: object) -> None:
    """Run a command of the project in a process of its own, in the folder of the repository.

    Raises:
        SystemExit: It failed, which it has explained.
    """
    if code := subprocess.run([sys.executable, "-m", module, *map(str, words)], cwd=ROOT).returncode:
        raise SystemExit(code)
