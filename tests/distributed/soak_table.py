"""Tables of measured figures that soak tests leave behind: ``$MEGABERT_SOAK_LOG`` or ``benchmarks/soak``."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


class SoakTable:
    def __init__(self, name: str, title: str, columns: str) -> None:
        self.path = Path(os.environ.get("MEGABERT_SOAK_LOG", ROOT / "benchmarks" / "soak")) / f"{name}.txt"
        self.lines = [
            f"# {title}",
            f"# python {platform.python_version()}, torch {torch.__version__}, deepspeed {version('deepspeed')}, "
            f"{os.cpu_count()} cores; python -m pytest -m soak tests/soak/test_{name}.py",
            columns,
        ]

    def add(self, row: str) -> None:
        self.lines.append(row)
        print(row, flush=True)

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("\n".join(self.lines) + "\n")
