"""Builds guard.cpp, without which torch refuses to work on a GPU that is not there."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import torch


def why_not_here() -> str | None:
    """Return why steps on a GPU that is not there cannot run here, or None."""
    if shutil.which("g++") is None or importlib.util.find_spec("triton") is None:
        return "steps on a GPU that is not there need g++ and Triton: apt-get install g++; pip install triton"
    if torch.version.cuda or torch.version.hip:
        return "this build of torch has a guard of its own for GPUs: install the one for CPUs"
    return None


def build_guard(folder: Path) -> Path:
    """Build the library into a folder and return its path, for LD_PRELOAD."""
    torch_folder, library = Path(torch.__file__).parent, folder / "guard.so"
    source = Path(__file__).with_name("guard.cpp")
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)]
    command += [f"-I{torch_folder}/include", f"-L{torch_folder}/lib", "-lc10", "-ltorch_cpu"]
    command.append(f"-Wl,-rpath,{torch_folder}/lib")
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return library
