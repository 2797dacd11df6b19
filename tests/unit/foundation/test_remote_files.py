"""Files of another host: whole and with the right bytes, or a sentence; whatever the server does."""

import builtins
import hashlib
import threading
from contextlib import suppress

import pytest
from support.faulty_server import proxying, serving_files

from megabert.foundation import remote_files
from megabert.foundation.errors import ConfigError, DataError, HaltedError
from megabert.foundation.remote_files import fetch_file, find_secret, read_remote, remote_size, store_file

CONTENT = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(remote_files, "RETRY_AFTER_S", (0.01, 0.01, 0.02))
    monkeypatch.setattr(remote_files, "SILENT_S", 1.0)
    import fsspec

    fsspec.filesystem("http").clear_instance_cache()  # with the time-outs of another test


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "shard").write_bytes(CONTENT)
    return folder


@pytest.fixture
def server(source):
    with serving_files(source) as port, proxying(port) as proxy:
        yield proxy


@pytest.mark.parametrize("kind", ["500", "503", "hang", "drop", "cut", "short", "flip"])
def test_spoilt_response_is_fetched_again(kind, server, tmp_path):
    server.faults = [("/shard", kind), ("/shard", kind)]
    fetch_file(f"{server.url}/shard", tmp_path / "new" / "shard", SHA256)
    assert (tmp_path / "new" / "shard").read_bytes() == CONTENT
    assert len(server.requests) == 3


@pytest.mark.parametrize("kind", ["500", "503", "drop", "cut", "short", "flip"])
def test_response_that_stays_spoilt_is_an_error_and_leaves_nothing(kind, server, tmp_path):
    server.faults = [("/shard", f"{kind} always")]
    with pytest.raises(DataError, match=f"{server.url}/shard: ") as refused:
        fetch_file(f"{server.url}/shard", tmp_path / "new" / "shard", SHA256)
    assert not list((tmp_path / "new").iterdir())
    assert len(server.requests) == (8 if kind == "drop" else 4), "aiohttp repeats a request that was dropped"
    if kind in ("short", "flip"):
        assert SHA256 in str(refused.value)
        assert "Upload it again" in str(refused.value)
    else:
        assert "Check the URL, the network and your credentials" in str(refused.value)


def test_size_that_a_server_cannot_say_is_asked_for_again(server):
    """fsspec asks by HEAD, then by GET, and reports any failure of both as a missing file."""
    server.faults = [("HEAD /shard", "500"), ("GET /shard", "503")]

    assert remote_size(f"{server.url}/shard") == len(CONTENT)
    server.requests.clear()
    with pytest.raises(DataError, match=r"nothing: cannot be read \(not there"):
        remote_size(f"{server.url}/nothing")
    assert len(server.requests) == 2


def test_missing_or_refused_file_is_asked_for_once(server, tmp_path):
    server.faults = [("/refused", "403 always")]
    with pytest.raises(DataError, match="refused: cannot be read"):
        read_remote(f"{server.url}/refused")
    with pytest.raises(DataError, match="nothing: cannot be read"):
        fetch_file(f"{server.url}/nothing", tmp_path / "nothing", SHA256)
    assert len(server.requests) == 2


def test_server_that_restarts_meanwhile_is_asked_again(source, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_files, "RETRY_AFTER_S", (0.05,) * 100)
    with serving_files(source) as port:
        pass  # killed
    is_fetched = threading.Event()

    def restart():
        with suppress(OSError), serving_files(source, port):
            is_fetched.wait(30)

    starting = threading.Timer(0.3, restart)
    starting.start()
    try:
        fetch_file(f"http://127.0.0.1:{port}/shard", tmp_path / "shard", SHA256)
    finally:
        is_fetched.set()
        starting.join()
    assert (tmp_path / "shard").read_bytes() == CONTENT


@pytest.mark.parametrize("fault", ["", "500 always"])
@pytest.mark.parametrize("begun", [0, 1])
def test_advance_that_raises_ends_the_transfer(begun, fault, server, tmp_path, caplog):
    def end():
        if len(server.requests) == begun:
            raise HaltedError("ended")

    server.faults = [("/shard", fault)] if fault else []
    with pytest.raises(HaltedError, match="ended"):
        fetch_file(f"{server.url}/shard", tmp_path / "shard", SHA256, advance=end)
    assert not (tmp_path / "shard").exists()
    assert len(server.requests) == begun
    assert "Trying again" not in caplog.text


@pytest.mark.parametrize("small_disk", ["1m"], indirect=True)
def test_full_disk_is_a_sentence_and_leaves_nothing(server, small_disk):
    with pytest.raises(HaltedError, match="no space left while shard was written"):
        fetch_file(f"{server.url}/shard", small_disk / "shard", SHA256)
    assert not list(small_disk.iterdir())
    assert len(server.requests) == 1, "a full disk is not tried again"


def test_missing_library_is_a_sentence_with_the_command(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **named):
        if name == "aiohttp":
            raise ImportError("No module named 'aiohttp'")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'megabert\[store\]'"):
        read_remote("https://127.0.0.1:9/x")


def test_stored_file_is_read_back_and_not_stored_twice(tmp_path):
    path = tmp_path / "shard"
    path.write_bytes(CONTENT)
    url = f"file://{tmp_path}/there/shard"
    assert store_file(url, path, SHA256)
    assert not store_file(url, path, SHA256)
    (tmp_path / "there" / "shard").write_bytes(CONTENT[:-1])
    assert store_file(url, path, SHA256)
    assert (tmp_path / "there" / "shard").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("https://user:pw@host/a", "a login"),
        ("s3://key:secret@bucket/a", "a login"),
        ("ftp://user@host/a", "a login"),
        ("zip://*::https://user:pw@host/a.zip", "a login"),
        ("https://host/a?X-Amz-Signature=0", "a query"),
        ("simplecache::https://host/a?sig=0", "a query"),
        ("https://host/a@b", ""),
        ("s3://bucket/what?", ""),
        ("file:///a", ""),
    ],
)
def test_login_and_signature_are_secrets(url, secret):
    assert find_secret(url) == secret
