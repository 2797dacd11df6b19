"""Machine code is kept as long as what it was made from is the same; where it cannot be kept it still runs."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.soak import in_soak

from megabert.foundation.compiled import frozen_files

ROOT = Path(__file__).parents[3]
LOOP = "from megabert.foundation.compiled import compiled\n\n@compiled\ndef increase(x):\n    return x + 1\n"
FIELD_LOOP = (
    "from megabert.foundation.compiled import compiled\n\n@compiled\ndef value_of(row):\n    return row.value\n"
)
FULL_DISK = """
import logging, resource, signal
logging.basicConfig()
from a_loop import increase
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
print(increase(1), increase(1.5))
"""


COMPILED_BY_ANOTHER = """
import subprocess, sys, threading
from filelock import FileLock
from megabert.foundation import compiled
import a_loop
fill = "import a_loop; a_loop.increase(1)"
subprocess.run([sys.executable, "-c", fill], check=True)
cache = a_loop.increase._cache._folder
kept = [path.rename(path.with_suffix(".nbc.kept")) for path in cache.glob("*.nbc")]
put_back = threading.Timer(1.0, lambda: [path.rename(path.with_suffix("")) for path in sorted(kept)])
compiled.COMPILE_S = 20.0
with FileLock(cache / "compiling"):
    put_back.start()
    print(len(kept), a_loop.increase(1), sum(a_loop.increase.stats.cache_misses.values()))
"""


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "a_loop.py").write_text(LOOP)
    inherited = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "HOME")}
    settings = inherited | {"PYTHONPATH": f"{ROOT}:{folder}"} | environment
    return subprocess.run([sys.executable, "-c", script], env=settings, capture_output=True, text=True, check=True)


def test_a_full_disk_is_said_once(tmp_path):
    result = run(FULL_DISK, tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert result.stdout.split() == ["2", "2.5"]
    assert result.stderr.count("compiled loops cannot be kept (File too large)") == 1


def test_a_loop_is_compiled_by_a_process_of_its_own(tmp_path):
    script = "from a_loop import increase\nprint(increase(1), sum(increase.stats.cache_misses.values()))"
    assert run(script, tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache")).stdout == "2 0\n"


def test_a_loop_that_another_process_has_compiled_is_taken_while_others_hold_the_lock(tmp_path):
    assert run(COMPILED_BY_ANOTHER, tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache")).stdout == "1 2 0\n"


def test_a_loop_that_another_process_cannot_import_is_compiled_here(tmp_path):
    script = "import a_loop, types\nclone = types.ModuleType('clone')\n"
    script += "exec(compile(open(a_loop.__file__).read(), a_loop.__file__, 'exec'), vars(clone))\n"
    script += "print(clone.increase(1), sum(clone.increase.stats.cache_misses.values()))"
    assert run(script, tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache")).stdout == "2 1\n"


def test_loops_run_without_a_home(tmp_path):
    script = "import pwd\npwd.getpwuid = lambda uid: {}[uid]\nfrom a_loop import increase\nprint(increase(1))"
    assert run(script, tmp_path).stdout == "2\n"
    assert not list(tmp_path.rglob("*.nbc"))


@pytest.mark.parametrize("lost", [9, *in_soak(1 << 20)])
def test_damaged_machine_code_is_compiled_anew(tmp_path, lost):
    script, cache = "from a_loop import increase\nprint(increase(1))", str(tmp_path / "cache")
    run(script, tmp_path, XDG_CACHE_HOME=cache)
    (path,) = tmp_path.rglob("*.nbc")
    path.write_bytes(path.read_bytes()[:-lost])
    result = run(script, tmp_path, XDG_CACHE_HOME=cache)
    assert result.stdout == "2\n"
    assert "damaged, so its loops are compiled anew" in result.stderr


@pytest.mark.soak
def test_a_loop_whose_argument_moved_to_another_module_is_compiled_anew(tmp_path):
    """Machine code names the classes of arguments by their modules, which need not be files that loops import."""
    (tmp_path / "b_loop.py").write_text(FIELD_LOOP)
    (tmp_path / "before.py").write_text("import typing\nclass Row(typing.NamedTuple):\n    value: typing.Any\n")
    script, cache = "import b_loop, {0}\nprint(b_loop.value_of({0}.Row(1)))", str(tmp_path / "cache")
    assert run(script.format("before"), tmp_path, XDG_CACHE_HOME=cache).stdout == "1\n"
    (tmp_path / "before.py").rename(tmp_path / "after.py")
    assert run(script.format("after"), tmp_path, XDG_CACHE_HOME=cache).stdout == "1\n"


def imported_files(loops: Path) -> set[Path]:
    """Return the files of this repository that a file of loops takes constants or functions from."""
    found = set()
    for node in ast.walk(ast.parse(loops.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith(("megabert", "data_prep")):
            folder = ROOT.joinpath(*node.module.split("."))
            modules = [folder / f"{alias.name}.py" for alias in node.names]
            found |= {path if path.is_file() else folder.with_suffix(".py") for path in modules}
    return found


def test_whatever_a_loop_freezes_is_a_reason_to_compile_anew():
    files = [path for package in ("megabert", "data_prep") for path in (ROOT / package).rglob("*_loops.py")]
    loops = [path for path in files if "megabert.foundation.compiled" in path.read_text(encoding="utf-8")]
    frozen = set().union(*map(imported_files, loops))
    assert ROOT / "megabert" / "foundation" / "randomness" / "keyed.py" in frozen
    assert [path for path in {*files, *frozen} if path not in frozen_files()] == []


def test_loops_freeze_no_more_than_a_few_files_without_imports_of_their_own():
    """Otherwise a change anywhere would compile all loops anew."""
    others = [path for path in frozen_files() if not path.name.endswith("_loops.py")]
    names = {str(path.relative_to(ROOT)) for path in others}
    assert {
        "data_prep/instances/draws.py",
        "megabert/foundation/randomness/keyed.py",
        "megabert/foundation/compiled.py",
    } <= names
    assert len(names) <= 9, names


@pytest.mark.soak
def test_processes_that_compile_for_several_types_at_once_leave_a_file_for_each(tmp_path):
    (tmp_path / "a_loop.py").write_text(LOOP)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    script = "import numpy, a_loop; x = a_loop.increase(numpy.ones(1, numpy.{})); print(x, x.dtype)"
    commands = [[sys.executable, "-c", script.format(name)] for name in ("int8", "float32")]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for command in commands]
    compiled = [process.communicate()[0] for process in processes]
    assert len(list(tmp_path.rglob("*.nbc"))) == len(commands)
    taken = [subprocess.run(command, env=environment, capture_output=True, text=True).stdout for command in commands]
    assert taken == compiled == ["[2] int64\n", "[2.] float32\n"]


def test_only_files_of_loops_hold_compiled_functions():
    """The folder of machine code is named by these files alone."""
    others = (path for package in ("megabert", "data_prep") for path in (ROOT / package).rglob("*.py"))
    assert [path for path in others if "@compiled" in path.read_text() and not path.name.endswith("_loops.py")] == []
