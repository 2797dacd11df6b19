"""A cache: each file once, for all processes and later runs, within its limit; and nothing half."""

import errno
import fcntl
import json
import multiprocessing
import shutil
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.faulty_server import proxying, serving_files

from megabert.foundation import remote_files
from megabert.foundation.cached_folders import cached_folder, fetch_files, is_cached
from megabert.foundation.errors import ConfigError, DataError, HaltedError
from megabert.foundation.files import sha256_file

SHARDS = [f"train-{number:05d}.arrow" for number in range(12)]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(remote_files, "RETRY_AFTER_S", (0.01, 0.01))
    cached_folder.cache_clear()


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source" / "128"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    for number, name in enumerate(SHARDS):
        (folder / name).write_bytes(bytes([number]) * 10_000)
    write_list(folder)
    return folder


def write_list(folder, **changes):
    shards = [{"file": name, "sha256": sha256_file(folder / name)} for name in SHARDS]
    tokenizer = {"tokenizer.json": sha256_file(folder / "tokenizer" / "tokenizer.json")}
    content = {"shards": shards, "tokenizer_files": tokenizer, **changes}
    (folder / "manifest.json").write_text(json.dumps(content))


@pytest.fixture
def server(source):
    with serving_files(source.parent) as port, proxying(port) as proxy:
        yield proxy


def names_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


BEFORE = {"manifest.json", "origin.json", "tokenizer/tokenizer.json", ".lock"}


def test_shards_come_once_and_stay(server, source, tmp_path):
    folder = cached_folder(f"{server.url}/128", str(tmp_path / "cache"))
    assert is_cached(folder)
    assert names_in(folder) == BEFORE
    fetch_files(folder, SHARDS[2:3])
    assert names_in(folder) == {*BEFORE, SHARDS[2]}
    fetch_files(folder)
    for name in SHARDS:
        assert (folder / name).read_bytes() == (source / name).read_bytes()
    seen = list(server.requests)
    fetch_files(folder)
    fetch_files(source)  # a folder of the user's own
    assert server.requests == seen
    assert len(seen) == len(set(seen)) == 14


def test_later_run_asks_for_the_manifest_alone(server, tmp_path):
    folder = cached_folder(f"{server.url}/128", str(tmp_path / "cache"))
    fetch_files(folder)
    server.requests.clear()
    cached_folder.cache_clear()
    assert cached_folder(f"{server.url}/128", str(tmp_path / "cache")) == folder
    fetch_files(folder)
    assert server.requests == ["GET /128/manifest.json"]


def test_another_url_of_the_same_build_shares_the_folder_and_another_build_does_not(server, source, tmp_path):
    first = cached_folder(f"{server.url}/128", str(tmp_path / "cache"))
    assert cached_folder(f"file://{source}", str(tmp_path / "cache")) == first
    write_list(source, statistics={"changed": 1})
    cached_folder.cache_clear()
    assert cached_folder(f"{server.url}/128", str(tmp_path / "cache")) != first


def test_interrupted_fetch_leaves_whole_files_and_is_continued(server, tmp_path):
    folder = cached_folder(f"{server.url}/128", str(tmp_path / "cache"))
    server.faults = [(SHARDS[7], "flip always")]
    with pytest.raises(DataError, match=SHARDS[7]):
        fetch_files(folder, connections=1)
    fetched = names_in(folder) - BEFORE
    assert {*SHARDS[:7]} <= fetched < {*SHARDS} - {SHARDS[7]}
    (folder / f".{SHARDS[7]}.0123abcd.tmp").write_bytes(b"half of a killed process")
    server.faults, before = [], list(server.requests)
    fetch_files(folder)
    assert names_in(folder) == {*BEFORE, *SHARDS}
    assert sorted(server.requests[len(before) :]) == [f"GET /128/{name}" for name in SHARDS if name not in fetched]


def test_missing_file_ends_the_others_in_their_pauses(server, tmp_path, monkeypatch):
    folder = cached_folder(f"{server.url}/128", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_files, "RETRY_AFTER_S", (2.0, 2.0, 2.0))
    server.faults = [(SHARDS[0], "500 always")]
    (tmp_path / "source" / "128" / SHARDS[1]).unlink()
    with pytest.raises(DataError, match=f"{SHARDS[1]}: cannot be read"):
        fetch_files(folder)
    assert len([line for line in server.requests if SHARDS[0] in line]) < 4


@pytest.mark.parametrize("has_locks", [True, False])
def test_file_that_another_rank_is_writing_stays(has_locks, server, tmp_path, monkeypatch):
    folder = cached_folder(f"{server.url}/128", str(tmp_path / "cache"))
    others = {".manifest.json.0123abcd.tmp", ".train-00000.row_lengths.npy.0123abcd.tmp"}
    if not has_locks:  # the other rank may be fetching at the same time
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
        others.add(f".{SHARDS[0]}.0123abcd.tmp")
    for name in others:
        (folder / name).touch()
    fetch_files(folder)
    assert others <= names_in(folder)


def _fetch(url, cache):
    fetch_files(cached_folder(url, cache))


def test_processes_share_the_work_of_one(server, tmp_path):
    context = multiprocessing.get_context("spawn")
    cache = str(tmp_path / "cache")
    ranks = [context.Process(target=_fetch, args=(f"{server.url}/128", cache)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
        assert rank.exitcode == 0
    shards = [line for line in server.requests if ".arrow" in line]
    assert sorted(shards) == [f"GET /128/{name}" for name in SHARDS]


def test_waiting_thread_advances(server, tmp_path):
    folder = cached_folder(f"{server.url}/128", str(tmp_path / "cache"))
    is_waiting, first = threading.Event(), threading.Event()

    def hold():
        first.set()
        assert is_waiting.wait(60)

    holder = threading.Thread(target=fetch_files, args=(folder,), kwargs={"advance": hold})
    holder.start()
    assert first.wait(60)
    fetch_files(folder, advance=is_waiting.set)
    holder.join()
    assert {*SHARDS} <= names_in(folder)


def test_limit_is_held_before_the_first_shard(server, source, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    other = cached_folder(f"{server.url}/128", str(cache))
    fetch_files(other)
    write_list(source, statistics={"changed": 1})
    cached_folder.cache_clear()
    with pytest.raises(HaltedError, match=f"needs 0.00012 GB more.*{other.name[:12]}"):
        fetch_files(cached_folder(f"{server.url}/128", str(cache), 0.0002))
    shutil.rmtree(other)
    cached_folder.cache_clear()
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    other.mkdir()
    (other / "renamed-meanwhile").symlink_to("nothing")
    fetch_files(cached_folder(f"{server.url}/128", str(cache), 0.0002))


@pytest.mark.parametrize("name", ["../other.arrow", "/etc/passwd", "manifest.json"])
def test_manifest_that_names_other_places_is_refused(name, server, source, tmp_path):
    write_list(source, shards=[{"file": name, "sha256": "0" * 64}])
    with pytest.raises(DataError, match="no plain file name"):
        cached_folder(f"{server.url}/128", str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"shards": [', "damaged or edited"),
        ('{"shards": []}', "lists no files of its tokenizer"),
        ('{"shards": [], "tokenizer_files": {"a": 1}}', "tokenizer_files.a"),
    ],
)
def test_unfit_manifest_is_refused_with_its_url(content, words, server, source, tmp_path):
    (source / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=f"{server.url}/128/manifest.json: .*{words}"):
        cached_folder(f"{server.url}/128", str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_cache_that_cannot_be_written_is_a_sentence(server, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ConfigError, match=r"data\.cache=.*cannot be written"):
        cached_folder(f"{server.url}/128", str(tmp_path / "cache"))
