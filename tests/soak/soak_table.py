"""Tables of measured figures that soak tests leave behind: ``$MEGABERT_SOAK_LOG`` or ``benchmarks/soak``."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch
from support.passed_tests import code_version

ROOT = Path(__file__).parents[2]


class SoakTable:
    """A file of rows, each written as it is measured. The same code continues it; other code starts again."""

    def __init__(self, name: str, title: str, columns: str) -> None:
        self.path = Path(os.environ.get("MEGABERT_SOAK_LOG", ROOT / "benchmarks" / "soak")) / f"{name}.txt"
        versions = f"python {platform.python_version()}, torch {torch.__version__}, deepspeed {version('deepspeed')}"
        origin = f"{versions}, {os.cpu_count()} cores, commit {code_version()}; make soak PART={name}"
        header = f"# {title}\n# {origin}\n{columns}\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists() or not self.path.read_text().startswith(header):
            self.path.write_text(header)

    def add(self, row: str) -> None:
        print(row, flush=True)
        with self.path.open("a") as file:
            file.write(f"{row}\n")
