"""Builds whose workers die, that are interrupted, or whose disk is full."""

import errno
import itertools
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from unittest import mock

import pyarrow as pa
import pytest
from unit.data_prep.conftest import FLAGS, SENTENCES, files_of

from data_prep.documents.arrow_files import write_batches
from data_prep.execution.executors import ProcessExecutor
from megabert.foundation.errors import DataError, HaltedError


def die(task):
    os.kill(os.getpid(), 9)


def die_at_three(task):
    if task == "file three":
        die(task)
    time.sleep(0.2)


def test_dead_worker_is_reported_with_its_task():
    tasks = ["file one", "file two", "file three", "file four"]
    with (
        pytest.raises(
            HaltedError, match=r"died at file three \(killed; out of memory\?\)\. .*run the same command again"
        ),
        ProcessExecutor(2) as executor,
    ):
        list(executor.run(die_at_three, tasks))


def test_workers_end_at_ctrl_c_in_the_middle_of_a_task():
    code = "import signal, time\nfrom data_prep.execution.executors import ProcessExecutor\n" + textwrap.dedent("""
        if __name__ == "__main__":
            # A script that runs the tests in the background has them ignore Ctrl-C, and so would this process.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with ProcessExecutor(2) as executor:
                print(*[pid for _, pid in executor.run(eval, ["__import__('os').getpid()"] * 9)], flush=True)
                list(executor.run(time.sleep, [60] * 2))
        """)
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    workers = {int(pid) for pid in child.stdout.readline().split()}
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    try:
        _, message = child.communicate(timeout=30)  # below the task's minute
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)  # faulthandler then writes where each thread stands
        pytest.fail(f"Ctrl-C did not end it: {child.communicate()[1]}")
    assert message.count("KeyboardInterrupt") == 1
    assert workers
    assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}")]


@pytest.mark.parametrize("small_disk", ["300k"], indirect=True)
def test_full_disk_keeps_finished_units_and_a_second_run_completes(small_disk, corpus, megabert_data):
    arguments = ["build", "--input", str(corpus), "--output", str(small_disk / "out"), *FLAGS]
    assert "the build will take" in megabert_data(*arguments, code=3).err
    arguments.append("--ignore-disk-space")
    message = megabert_data(*arguments, code=3).err
    assert "no space left" in message
    assert "MiB free" in message
    assert str(small_disk) in message
    finished = [name for name in files_of(small_disk) if "records" in name]
    assert finished
    assert not [name for name in files_of(small_disk) if name.endswith(".tmp")]
    subprocess.run(["mount", "-o", "remount,size=60m", str(small_disk)], check=True)
    assert "done before" in megabert_data(*arguments).err
    megabert_data("verify", small_disk / "out", "--workers", "1")


def test_full_disk_error_names_the_folder(small_build, tmp_path, monkeypatch):
    """The same without a mount: the fourth write finds no space."""
    from megabert.foundation import files

    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(
        files, "sync_file", mock.Mock(side_effect=itertools.chain([None] * 3, [full], itertools.repeat(None)))
    )
    assert "no space left" in small_build(texts=[SENTENCES] * 9, code=3).err
    assert not list(tmp_path.rglob("*.tmp"))
    # The corpus was not refused, so the text that was read is not deleted for another one.
    monkeypatch.undo()
    assert "was begun with other input" in small_build(texts=[SENTENCES] * 8, code=3).err
    assert list((tmp_path / "out" / "work" / "extract").iterdir())


def test_write_that_fails_names_the_file(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(DataError, match=r"a\.arrow: would be larger than the limit .*, 0 bytes .ulimit -f"):
            write_batches(tmp_path / "a.arrow", pa.schema([("ids", pa.int64())]), [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
