"""Collect the packages that a machine with torch, Triton and the usual packages lacks, for one without a network.

    python -m benchmarks.gpu.wheels [--python 3.12] [--output build/bench-gpu-wheels]

The versions are those of the Python that runs this, with which the tests passed; Linux on x86-64. The runbook installs
the folder by itself where it finds it. Needs pip, and torch for the build of deepspeed (without compiled ops).
"""

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.runs import WHEELS

BUILT = ("deepspeed", "hjson")
"""Sources alone are published of these; nothing in them is compiled."""
FETCHED = ("pydantic", "pydantic-core", "annotated-types", "typing-inspection")
PLATFORMS = ("manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64")
MOST_MB = 10.0


def pinned(names: tuple[str, ...]) -> list[str]:
    """Return ``name==version`` of what is installed here."""
    return [f"{name}=={importlib.metadata.version(name)}" for name in names]


def collect(folder: Path, python: str) -> float:
    """Fill the folder anew and return its megabytes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip"]
    only = ["--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    for platform in PLATFORMS:
        only += ["--platform", platform]
    subprocess.run([*pip, "download", "-q", *only, "-d", str(folder), *pinned(FETCHED)], check=True)
    environment = os.environ | {"DS_BUILD_OPS": "0"}
    command = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), *pinned(BUILT)]
    subprocess.run(command, env=environment, check=True)
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def main() -> int:
    """Collect, and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of Python over there (default: 3.12)")
    parser.add_argument("--output", type=Path, default=WHEELS, help="folder, made anew (default: %(default)s)")
    options = parser.parse_args()
    size = collect(options.output, options.python)
    print(f"{options.output}: {', '.join(sorted(path.name for path in options.output.iterdir()))}; {size:.1f} MB")
    return int(size > MOST_MB)


if __name__ == "__main__":
    sys.exit(main())
