"""What a build does not begin with: another input, a foreign folder, a second build."""

import errno
import shutil

import fsspec
import pytest
from unit.data_prep.builds import Stopping
from unit.data_prep.conftest import write_jsonl

from data_prep.config.build import SourceConfig
from data_prep.execution.executors import Executor
from data_prep.pipeline import build_shards
from megabert.foundation.errors import DataError


def test_changed_file_of_the_given_tokenizer_is_another_input(make_config, tokenizer_folder, texts, tmp_path):
    given, path = tmp_path / "tokenizer", write_jsonl(tmp_path / "in.jsonl", texts[:40])
    shutil.copytree(tokenizer_folder, given)
    config = make_config(sources=(SourceConfig(input=str(path)),), lengths=(64,), dupe_factor=1, tokenizer=str(given))
    build_shards(config, tmp_path / "out", Executor())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        before = (given / name).read_text()
        (given / name).write_text(before + "\n")
        with pytest.raises(DataError, match=rf"was begun with other input \({given / name} changed, added or gone"):
            build_shards(config, tmp_path / "out", Executor())
        (given / name).write_text(before)
    build_shards(config, tmp_path / "out", Executor())


def test_changed_remote_input_is_refused(make_config, tokenizer_folder, texts, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", texts[:40])
    source = SourceConfig(input=f"file://{path}")
    config = make_config(sources=(source,), lengths=(64,), dupe_factor=1, tokenizer=str(tokenizer_folder))
    build_shards(config, tmp_path / "out", Executor())
    path.write_text(path.read_text().replace("the", "The"))  # as long as before
    with pytest.raises(DataError, match=r"other input .*in\.jsonl changed"):
        build_shards(config, tmp_path / "out", Executor())


def test_passwords_of_input_urls_are_written_nowhere(make_config, tokenizer_folder, texts, tmp_path, monkeypatch):
    path = write_jsonl(tmp_path / "in.jsonl", texts[:40])
    storage = fsspec.filesystem("memory")  # whose addresses have no host otherwise
    monkeypatch.setattr(type(storage), "unstrip_protocol", lambda self, name: f"memory://{name.lstrip('/')}")
    storage.pipe("/reader:pass-word@host/in.jsonl", path.read_bytes() + b'{"text": 1}\n')
    source = SourceConfig(input="memory://reader:pass-word@host/in.jsonl")
    shared = {"sources": (source,), "lengths": (64,), "dupe_factor": 1, "tokenizer": str(tokenizer_folder)}
    with pytest.raises(DataError, match=r"memory://host/in\.jsonl") as refused:
        build_shards(make_config(**shared), tmp_path / "refused", Executor())
    assert "pass-word" not in str(refused.value)
    build_shards(make_config(**shared, max_bad_share=0.5), tmp_path / "out", Executor())
    build_shards(make_config(**shared, max_bad_share=0.5), tmp_path / "out", Executor())  # the second finds all done
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(b"memory://host/in.jsonl" in file.read_bytes() for file in files)
    assert not [file.name for file in files if b"pass-word" in file.read_bytes()]


def test_foreign_folder_is_refused(make_config, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holds other files \(precious\.txt\)"):
        build_shards(make_config(), tmp_path, Executor())
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_second_build_in_a_folder_is_refused(make_config, tmp_path):
    class Nested(Executor):
        def run(self, function, tasks):
            with pytest.raises(DataError, match=r"another build is at work here \(host .*, process \d+\)"):
                build_shards(make_config(), tmp_path / "out", Executor())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_shards(make_config(), tmp_path / "out", Nested())


def test_file_system_without_locks_is_told_and_used(make_config, tmp_path, monkeypatch, capsys):
    def flock(descriptor, mode):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(KeyboardInterrupt):
        build_shards(make_config(), tmp_path / "out", Stopping(0))
    assert "has no locks; do not start a second build here" in capsys.readouterr().err
