import errno
import hashlib

import pytest

from megabert.errors import DataError
from megabert.schema import atomic_path, atomic_write, publish_folder, sha256_file, write_durably
from megabert.schema.files import sync_file, sync_folder


def test_atomic_write_leaves_only_the_file(tmp_path):
    atomic_write(tmp_path / "new" / "a.txt", "text")
    assert (tmp_path / "new" / "a.txt").read_text() == "text"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.txt"]


def write_and_fail(path, error):
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        raise error


def test_failed_write_keeps_the_old_file(tmp_path):
    atomic_write(tmp_path / "a.txt", "old")
    with pytest.raises(KeyError):
        write_and_fail(tmp_path / "a.txt", KeyError())
    assert (tmp_path / "a.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_full_disk_names_folder_and_free_space(tmp_path):
    with pytest.raises(DataError, match=r"no space left while a\.txt was written \([0-9.]+ MiB free\)"):
        write_and_fail(tmp_path / "a.txt", OSError(errno.ENOSPC, "No space left on device"))
    assert not list(tmp_path.iterdir())


def test_sha256_of_file(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_file(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(DataError, match="cannot be read"):
        sha256_file(tmp_path / "b")


def test_durable_write_and_syncs_take_paths(tmp_path):
    write_durably(tmp_path / "a", b"abc")
    sync_file(tmp_path / "a")
    sync_folder(tmp_path)
    assert (tmp_path / "a").read_bytes() == b"abc"


def test_a_folder_is_not_replaced_by_a_file(tmp_path):
    with pytest.raises(DataError, match="is a folder"):
        atomic_write(tmp_path, "text")
    assert list(tmp_path.iterdir()) == []


def test_a_published_folder_replaces_the_earlier_one_whole(tmp_path):
    folder = tmp_path / "model"
    for content in ("first", "second"):
        with publish_folder(folder) as temporary:
            (temporary / "inner").mkdir()
            (temporary / "inner" / "file").write_text(content)
    assert (folder / "inner" / "file").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failure_leaves_the_earlier_folder_and_nothing_else(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "file").write_text("first")

    def write_and_fail():
        with publish_folder(folder) as temporary:
            (temporary / "file").write_text("second")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()
    assert (folder / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
