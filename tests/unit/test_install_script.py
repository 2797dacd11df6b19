"""``requirements/install.sh`` with a stand-in for Python and pip: which torch it takes, and what it says."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/bash
# Answers as an interpreter without torch would; pip has the builds of torch that $BUILDS names.
case "$*" in
  *sys.base_prefix*) echo "$PREFIX_WITH_TORCH" ;;
  "-m venv"*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" ;;
  *"pip --version") ;;
  "-m pip"*)
    echo "$*" >>"$WORK/asked"
    case "$*" in *"torch==2"*)
      for build in $BUILDS; do case "$* " in *" torch==$build "*) echo "$build" >"$WORK/torch"; exit 0 ;; esac; done
      echo "ERROR: No matching distribution found" >&2
      exit 1 ;;
    esac ;;
  *'version("torch")'*) cat "$WORK/torch" ;;
  *"import torch; print("*) echo "torch==$(cat "$WORK/torch")+cu130" ;;
  *"import torch"*) [ -e "$WORK/torch" ] ;;
esac
"""


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def install(tmp_path):
    """Return a function of the builds that pip has, which gives exit code, stderr, pip's arguments and the pins."""
    for name, text in {"python3": PYTHON, "nvidia-smi": "#!/bin/bash\nexit 1\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(*builds: str, **settings: str) -> tuple[int, str, list[str], list[str]]:
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "WORK": str(tmp_path)}
        environment |= {"PYTHON": "python3", "BUILDS": " ".join(builds), "TORCH_INDEX": "https://index"}
        environment |= {"PREFIX_WITH_TORCH": "", "CUDA": "", **settings}
        command = ["bash", ROOT / "requirements" / "install.sh", tmp_path / "venv", "test"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        asked, pins = map(lines_of, (tmp_path / "asked", tmp_path / "venv" / "constraints.txt"))
        return done.returncode, done.stderr, [line for line in asked if " torch==" in line], pins

    return run


def pinned(file: str) -> str:
    """Return the version of torch that a file of pins names."""
    lines = (ROOT / "requirements" / file).read_text().splitlines()
    return next(line.removeprefix("torch==") for line in lines if line.startswith("torch=="))


CPU, DEFAULT = pinned("cpu.txt"), pinned("cuda.txt")


def test_cpu_build_is_taken_where_there_is_one(install):
    code, shown, asked, pins = install(CPU, DEFAULT)
    assert (code, len(asked)) == (0, 1), shown
    assert "GB" not in shown
    assert pins[-2] == f"torch=={CPU}"
    assert pins[-1].startswith("triton=="), "for the tests of the kernels"


def test_login_node_without_a_driver_can_install_the_cuda_build(install):
    _, shown, _, _ = install(CPU)
    assert "remove" in shown
    assert "CUDA=1 make install" in shown


def test_cuda_build_is_taken_without_a_driver_if_asked_for(install):
    code, shown, asked, pins = install(CPU, DEFAULT, CUDA="1")
    assert code == 0, shown
    assert [line.split()[-2] for line in asked] == [f"torch=={DEFAULT}"]
    assert pins[-1] == f"torch=={DEFAULT}"


def test_torch_of_another_virtualenv_is_not_said_to_be_kept(install, tmp_path):
    (tmp_path / "torch").write_text(CPU)
    code, shown, asked, _ = install(CPU, PREFIX_WITH_TORCH=str(tmp_path / "other"))
    assert (code, asked) == (2, [])
    assert f"make VENV={tmp_path}/other" in shown
    assert "keeping torch" not in shown
    (tmp_path / "venv").mkdir()
    code, shown, asked, _ = install(CPU, PREFIX_WITH_TORCH=str(tmp_path / "venv"))
    assert (code, asked) == (0, []), shown
    assert "keeping torch" in shown


def test_without_a_cpu_build_the_default_one_serves_and_its_weight_is_said_once(install):
    code, shown, asked, pins = install(DEFAULT)
    assert code == 0, shown
    assert [line.split()[-2] for line in asked] == [f"torch=={CPU}", f"torch=={CPU}", f"torch=={DEFAULT}"]
    assert "--extra-index-url https://index" in asked[1]
    assert shown.count("2.7 GB to download") == 1
    assert "ERROR" not in shown
    assert pins[-1] == f"torch=={DEFAULT}"
    assert not any(pin.startswith("triton==") for pin in pins), "the default build asks for its own"


def test_an_install_that_was_interrupted_goes_on_with_the_torch_that_is_there(install):
    _, _, asked, pins = install(DEFAULT)
    code, shown, asked_again, pins_again = install(CPU, DEFAULT)
    assert code == 0, shown
    assert asked_again == asked, "no torch is asked for again"
    assert pins_again == pins


def test_no_torch_at_all_is_an_error_with_a_remedy(install):
    code, shown, _, _ = install()
    assert code == 2
    assert "No matching distribution found" in shown
    assert "TORCH_INDEX=..." in shown.splitlines()[-1]
