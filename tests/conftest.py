"""Every test starts from the same global seed and without the caller's settings, so that a failure repeats.

Long runs of tests continue from where they ended.
"""

import gc
import os
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

# One thread a process, set before torch is imported: test files run side by side, and waiting OpenMP threads spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Else each worker, and each command that starts cold, would compile all modules and rewrite all asserts anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# No test uses the caller's account on a model hub; huggingface_hub reads this once, when it is imported.
os.environ["HF_TOKEN_PATH"] = os.devnull

import pytest
import torch
from support.environment import clear
from support.passed_tests import Progress

clear(os.environ)
sys.dont_write_bytecode = False
gc.set_threshold(100_000, 50, 100)  # each search goes through all of torch and DeepSpeed, and finds little

SLOWEST = (
    "integration/slurm/",
    "integration/",
    "unit/ops/test_interpreted_kernels.py",
    "unit/ops/test_compiled_kernels.py",
    "fake_cuda/",
    "unit/downstream/finetuning/test_finetune.py",
    "unit/downstream/finetuning/grid/",
    "unit/downstream/publish/test_onnx_graph.py",
    "unit/examples/test_notebook.py",
    "docs/test_own_bert.py",
    "unit/data_prep/execution/",
    "docs/test_tutorial.py",
    "several_ranks/",
    "bad_input/",
)
"""What is run first. Workers take files in this order, so that those that are left at the end are short ones."""
TESTS = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no test that only ``make soak`` runs: each worker would, before its first test."""
    return True if collection_path == TESTS / "soak" and "not soak" in config.option.markexpr else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest files first; others, and the tests of a file, stay in their order."""

    def order(item: pytest.Item) -> int:
        name = item.path.relative_to(TESTS).as_posix()
        return next((place for place, start in enumerate(SLOWEST) if name.startswith(start)), len(SLOWEST))

    items.sort(key=order)
    gc.freeze()


@pytest.fixture(autouse=True)
def same_global_seed() -> None:
    torch.manual_seed(1810)


@pytest.fixture
def megabert(capsys):
    """Return a function that runs ``megabert`` in this process, checks its exit code, and returns what it printed."""
    return partial(run_here, capsys, "megabert.cli")


@pytest.fixture
def megabert_data(capsys):
    """The same for ``megabert-data``."""
    return partial(run_here, capsys, "data_prep.cli")


def run_here(capsys, module: str, *words: object, code: int = 0):
    ended = import_module(module).main([str(word) for word in words])
    printed = capsys.readouterr()
    assert ended == code, printed.out + printed.err
    assert "Traceback" not in printed.err
    return printed


@pytest.fixture
def small_disk(request, tmp_path):
    """A file system of 6 MiB, or of the size that a test sets; unmounted lazily, for a process may map its files."""
    folder, size = tmp_path / "disk", getattr(request, "param", "6m")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("mounting a small tmpfs to fill takes root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], timeout=30, check=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "leave out the tests that FILE lists as passed by this very code, and list there those that pass"
    parser.addoption("--progress", metavar="FILE", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--progress"):
        config.pluginmanager.register(Progress(file))
