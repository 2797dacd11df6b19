import errno
import hashlib
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

from megabert.foundation import files
from megabert.foundation.errors import CheckpointError, ConfigError, DataError
from megabert.foundation.full_disk import library_error
from megabert.foundation.json_files import parse_json, read_json, to_json
from megabert.foundation.whole_folders import publish_folder


@dataclass(frozen=True)
class Part:
    name: str
    start: int


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    share: float = 0.5


WHOLE = Whole((Part("a", 0), Part("b", 7)), 0.25)


@pytest.mark.parametrize("name", ["new/a.txt", "x" * 255, "\u00e9" * 127])
def test_atomic_write_leaves_only_the_file(tmp_path, name):
    files.atomic_write(tmp_path / name, "text")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [(path.name, path.read_text()) for path in written] == [(Path(name).name, "text")]


def test_permissions_of_a_file_are_for_the_umask_to_decide(tmp_path):
    """A group shares runs and builds with umask 002."""
    before = os.umask(0o002)
    try:
        os.close(files.open_in_place(tmp_path / "log", os.O_RDWR))
    finally:
        os.umask(before)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o664


def write_and_fail(path, error):
    with files.atomic_path(path) as temporary:
        temporary.write_text("new")
        raise error


def test_failed_write_keeps_the_old_file(tmp_path):
    files.atomic_write(tmp_path / "a.txt", "old")
    with pytest.raises(KeyError):
        write_and_fail(tmp_path / "a.txt", KeyError())
    assert (tmp_path / "a.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_sha256_of_file(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert files.sha256_file(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(DataError, match="cannot be read"):
        files.sha256_file(tmp_path / "b")


def test_a_folder_published_as_the_working_folder_fills_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    number = tmp_path.stat().st_ino
    with publish_folder(Path(".")) as new:
        (new / "config.json").write_text("{}")
    assert (os.listdir("."), tmp_path.stat().st_ino) == (["config.json"], number)
    with pytest.raises(DataError, match="is the working folder, and not empty"), publish_folder(tmp_path):
        pass


def test_a_published_folder_replaces_the_earlier_one_whole(tmp_path):
    folder = tmp_path / "model"
    for content in ("first", "second"):
        with publish_folder(folder) as temporary:
            (temporary / "inner").mkdir()
            (temporary / "inner" / "file").write_text(content)
    assert (folder / "inner" / "file").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def publish_and_fail(folder, *names):
    with publish_folder(folder) as temporary:
        for name in names:
            (temporary / name).write_text("second")
        raise KeyboardInterrupt


def test_a_failure_leaves_the_earlier_folder_and_nothing_else(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "file").write_text("first")
    with pytest.raises(KeyboardInterrupt):
        publish_and_fail(folder, "file")
    assert (folder / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_file_that_cannot_be_removed_leaves_no_other_behind(tmp_path, monkeypatch):
    unlink = os.unlink

    def refuse(path, **options):
        if str(path).endswith("stuck"):
            raise OSError(errno.EBUSY, "in use", path)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(KeyboardInterrupt):
        publish_and_fail(tmp_path / "model", "a", "stuck", "z")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["stuck"]


def test_a_value_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(to_json(WHOLE)))
    assert read_json(path, Whole, remedy="Write it again.") == WHOLE


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ('{"parts": [{"name": "a", "start": "0"}]}', "parts.0.start"),
        ('{"parts": [{"name": "a"}]}', "parts.0.start"),
        ('{"parts": null}', "parts"),
        ("[]", "an object"),
        ('{"parts": [', "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        ("[" * 100_000, "recursion"),
        ('{"parts": [{"name": "a", "start": ' + "9" * 6000 + "}]}", "out of range"),
    ],
)
def test_damage_names_file_field_and_remedy(tmp_path, content, field):
    path = tmp_path / "whole.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        read_json(path, Whole, remedy="Write it again.")
    message = str(caught.value)
    assert str(path) in message
    assert field in message
    assert message.endswith("Write it again.")


def test_a_missing_file_and_text_from_elsewhere_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"whole\.json: cannot be read .*Use another step"):
        read_json(tmp_path / "whole.json", Whole, remedy="Use another step.", error=CheckpointError)
    with pytest.raises(DataError, match="shard 3"):
        parse_json("{}", Whole, where="shard 3", remedy="Build it again.")


def test_link_is_replaced_by_a_file_and_what_it_names_stays(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "link").symlink_to("precious")
    files.atomic_write(tmp_path / "link", "text")
    assert not (tmp_path / "link").is_symlink()
    assert [(tmp_path / name).read_text() for name in ("link", "precious")] == ["text", "kept"]


@pytest.mark.parametrize("target", ["precious", "nothing"])
def test_link_is_replaced_by_a_folder_and_what_it_names_stays(tmp_path, target):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    (tmp_path / "link").symlink_to(target)
    with publish_folder(tmp_path / "link") as new:
        (new / "file").write_text("text")
    assert not (tmp_path / "link").is_symlink()
    assert [(tmp_path / name / "file").read_text() for name in ("link", "precious")] == ["text", "kept"]
    assert len(list(tmp_path.iterdir())) == 2


def test_standard_output_is_not_replaced_by_a_file():
    with pytest.raises(DataError, match="/dev/std"):
        files.atomic_write("/dev/stdout", "text")
    assert Path("/dev/stdout").is_symlink()


def test_link_is_refused_where_a_file_grows(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "log").symlink_to("precious")
    with pytest.raises(DataError, match="log: is a link"):
        files.open_to_append(tmp_path / "log")
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.parametrize("name", ["logs", "logs/deep"])
def test_link_in_the_place_of_a_folder_of_ours_is_refused(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(tmp_path)
    with pytest.raises(DataError, match=f"{path}: is a link"):
        files.refuse_linked_folders(tmp_path, ["logs", "logs/*"])


def special(path, kind):
    """Make what is no regular file; return its path."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        target = {"device": "/dev/zero", "file of the kernel's": "/proc/self/mounts", "loop": path.name}[kind]
        path.symlink_to(target)
    return path


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device", "file of the kernel's"])
def test_only_regular_files_are_read(tmp_path, kind):
    path = special(tmp_path / "x", kind)
    for read in (files.open_to_read, files.read_small, files.check_regular):
        with pytest.raises(OSError, match=f"it is a {kind}, not"):
            read(path)
    with pytest.raises(DataError, match=f"x: cannot be read .it is a {kind}, not"):
        read_json(path, Whole, remedy="Copy it again.")
    with pytest.raises(DataError, match=f"x: cannot be read .it is a {kind}, not"):
        files.sha256_file(path)


def test_file_that_is_parsed_as_a_whole_has_a_bound(tmp_path):
    (tmp_path / "huge.json").touch()
    os.truncate(tmp_path / "huge.json", 1 << 40)
    with pytest.raises(DataError, match=r"huge\.json: cannot be read .it has more than the 64 MiB"):
        read_json(tmp_path / "huge.json", Whole, remedy="Copy it again.")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, r"no space left while a\.txt was written \([0-9.]+ MiB free\)"),
        (errno.EDQUOT, "quota is used up"),
        (errno.EFBIG, "limit of file size"),
    ],
)
def test_lack_of_space_says_of_what(tmp_path, number, said):
    with pytest.raises(DataError, match=said):
        write_and_fail(tmp_path / "a.txt", OSError(number, os.strerror(number)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["text", "symbolic", "hard", "folder/../text", "folder/inner"])
def test_output_is_none_of_the_inputs_by_any_name(tmp_path, name):
    (tmp_path / "folder").mkdir()
    for path in ("text", "folder/inner", "other"):
        (tmp_path / path).write_text("")
    (tmp_path / "symbolic").symlink_to("text")
    os.link(tmp_path / "text", tmp_path / "hard")
    inputs = tmp_path / "text", tmp_path / "folder"
    with pytest.raises(ConfigError, match="which this command reads"):
        files.refuse_input(tmp_path / name, *inputs)
    files.refuse_input(tmp_path / "other", *inputs)
    files.refuse_input(tmp_path / "new", *inputs)


def test_error_of_a_library_in_rust_is_the_systems():
    assert library_error(Exception("I/O error: File too large (os error 27)")).errno == errno.EFBIG
    assert library_error(Exception("it is no JSON")) is None


@pytest.mark.parametrize("kind", ["pipe", "loop", "folder"])
def test_only_a_file_is_replaced_by_a_file(tmp_path, kind):
    path = special(tmp_path / kind, kind)
    with pytest.raises(DataError, match=kind):
        files.atomic_write(path, "text")
    assert [entry.name for entry in tmp_path.iterdir()] == [kind]
    if kind != "folder":
        with pytest.raises(DataError, match=kind), publish_folder(path):
            pass
    assert [entry.name for entry in tmp_path.iterdir()] == [kind]


def test_a_folder_does_not_replace_a_file(tmp_path):
    (tmp_path / "name").write_text("precious")
    with pytest.raises(DataError, match="is a file"), publish_folder(tmp_path / "name"):
        pass
    assert (tmp_path / "name").read_text() == "precious"


def test_a_lock_is_no_link_and_no_pipe(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "link").symlink_to("precious")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(DataError, match=name):
            files.open_lock(tmp_path / name)
    assert (tmp_path / "precious").read_text() == "kept"


def test_only_temporaries_of_ours_are_removed(tmp_path):
    for name in ("a/.model.0a1b2c3d.tmp/new/x", ".out.json.0a1b2c3d.tmp", ".v.npy.0a1b2c3d.tmp", ".mine.json.x.tmp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    files.remove_killed_writes(tmp_path, [".*.json.*.tmp", "a/.*.tmp"])
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".mine.json.x.tmp", ".v.npy.0a1b2c3d.tmp", "a"]
    names = (".out.0a1b2c3d.tmp", ".out.0a1b2c3d.tmp.old", ".mine.tmp", ".out.tmp")
    assert [files.is_temporary(Path(name)) for name in names] == [True, True, False, False]
