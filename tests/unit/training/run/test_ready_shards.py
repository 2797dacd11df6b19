"""Shards of later phases come in the background; tests/integration/test_runs_from_urls.py has the starts of phases."""

import json
import threading
from types import SimpleNamespace

import pytest

from megabert.foundation import remote_files
from megabert.foundation.cached_folders import cached_folder
from megabert.foundation.files import sha256_file
from megabert.training.run.ready_shards import check_phases, fetching_ahead, is_ahead

NAMES = [f"train-{number}.arrow" for number in range(5)]


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_files, "RETRY_AFTER_S", ())
    cached_folder.cache_clear()
    folder = tmp_path / "source"
    (folder / "tokenizer").mkdir(parents=True)
    for name in (*NAMES, "tokenizer/vocab.txt"):
        (folder / name).write_text(name)
    shards = [{"file": name, "sha256": sha256_file(folder / name)} for name in NAMES]
    tokenizer_files = {"vocab.txt": sha256_file(folder / "tokenizer" / "vocab.txt")}
    (folder / "manifest.json").write_text(json.dumps({"shards": shards, "tokenizer_files": tokenizer_files}))
    return folder


def phase_of(*folders):
    return tuple(SimpleNamespace(sources=[SimpleNamespace(folder=folder, shards=[])]) for folder in folders)


def in_background():
    return [thread for thread in threading.enumerate() if thread.name == "megabert-fetch"]


def finish_background():
    for thread in in_background():
        thread.join(60)
        assert not thread.is_alive()


def test_later_phases_are_fetched_in_the_background(source, tmp_path):
    folder = cached_folder(f"file://{source}", str(tmp_path / "cache"))
    assert is_ahead(phase_of(folder, folder))
    assert not is_ahead(phase_of(source, source))
    with fetching_ahead([phase_of(source, source), phase_of(folder, folder)]):
        finish_background()
    assert sorted(path.name for path in folder.glob("*.arrow")) == NAMES


def test_failure_in_the_background_is_a_warning(source, tmp_path, caplog):
    folder = cached_folder(f"file://{source}", str(tmp_path / "cache"))
    (source / NAMES[3]).unlink()
    with fetching_ahead([phase_of(folder, folder)]):
        finish_background()
    assert "shards of a later phase" in caplog.text
    assert NAMES[3] in caplog.text
    assert "The phase will try again" in caplog.text


def test_another_rank_of_the_node_fetches_nothing(source, tmp_path, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    folder = cached_folder(f"file://{source}", str(tmp_path / "cache"))
    with fetching_ahead([phase_of(folder, folder)]):
        assert not in_background()
    assert not list(folder.glob("*.arrow"))


def test_rank_that_is_done_may_wait_for_another_nodes_cache(source, tmp_path):
    folder = cached_folder(f"file://{source}", str(tmp_path / "cache"))
    said, met = ["begun"], []

    def gather(value):
        met.append(said[-1])
        return [value]

    world = SimpleNamespace(rank=0, size=1, is_main=True, gather=gather, broadcast=lambda value: value)
    watchdog = SimpleNamespace(
        expect=lambda doing, seconds: said.append(doing), expect_start=lambda: said.append("start")
    )
    check_phases([phase_of(folder, folder)], tmp_path, world, watchdog)
    assert met == ["begun"] * 2 + ["waiting for the shards of other nodes"] * 2
    assert said[-1] == "start"
