"""What a build does not begin with: another input, a foreign folder, a second build."""

import errno
import shutil
from unittest import mock

import fsspec
import pytest
from unit.data_prep.builds import Stopping
from unit.data_prep.conftest import write_jsonl

from data_prep.config.build import SourceConfig
from data_prep.execution.executors import Executor
from megabert.foundation.errors import DataError


def test_changed_file_of_the_given_tokenizer_is_another_input(build, tokenizer_folder, texts, tmp_path):
    given = shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    own = {"texts": texts[:40], "lengths": (64,), "dupe_factor": 1, "tokenizer": str(given)}
    build(**own)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        before = (given / name).read_text()
        (given / name).write_text(before + "\n")
        with pytest.raises(DataError, match=rf"was begun with other input \({given / name} changed, added or gone"):
            build(**own)
        (given / name).write_text(before)
    build(**own)


def test_changed_remote_input_is_refused(build, tokenizer, texts, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", texts[:40])
    sources = (SourceConfig(input=f"file://{path}"),)
    own = {"sources": sources, "lengths": (64,), "dupe_factor": 1, "tokenizer": tokenizer}
    build(**own)
    path.write_text(path.read_text().replace("the", "The"))  # as long as before
    with pytest.raises(DataError, match=r"other input .*in\.jsonl changed"):
        build(**own)


def test_passwords_of_input_urls_are_written_nowhere(build, tokenizer, texts, tmp_path, monkeypatch):
    path = write_jsonl(tmp_path / "in.jsonl", texts[:40])
    storage = fsspec.filesystem("memory")  # whose addresses have no host otherwise
    monkeypatch.setattr(type(storage), "unstrip_protocol", lambda self, name: f"memory://{name.lstrip('/')}")
    storage.pipe("/reader:pass-word@host/in.jsonl", path.read_bytes() + b'{"text": 1}\n')
    sources = (SourceConfig(input="memory://reader:pass-word@host/in.jsonl"),)
    shared = {"sources": sources, "lengths": (64,), "dupe_factor": 1, "tokenizer": tokenizer}
    with pytest.raises(DataError, match=r"memory://host/in\.jsonl") as refused:
        build("refused", **shared)
    assert "pass-word" not in str(refused.value)
    for _ in range(2):  # the second finds all done
        build(**shared, max_bad_share=0.5)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(b"memory://host/in.jsonl" in file.read_bytes() for file in files)
    assert not [file.name for file in files if b"pass-word" in file.read_bytes()]


def test_foreign_folder_is_refused(build, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holds other files \(precious\.txt\)"):
        build(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_second_build_in_a_folder_is_refused(build):
    class Nested(Executor):
        def run(self, function, tasks):
            with pytest.raises(DataError, match=r"another build is at work here \(host .*, process \d+\)"):
                build()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(executor=Nested())


def test_file_system_without_locks_is_told_and_used(build, monkeypatch, capsys):
    monkeypatch.setattr("fcntl.flock", mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    with pytest.raises(KeyboardInterrupt):
        build(executor=Stopping(0))
    assert "has no locks; do not start a second build here" in capsys.readouterr().err
