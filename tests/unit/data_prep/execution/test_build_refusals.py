"""What a build does not begin with: another input, a foreign folder, a second build, other versions of packages."""

import errno
import shutil
from dataclasses import replace
from unittest import mock

import fsspec
import pytest
from unit.data_prep.builds import Stopping
from unit.data_prep.conftest import write_jsonl

from data_prep.config.build import SourceConfig
from data_prep.execution import build_state
from data_prep.execution.executors import Executor
from megabert.foundation.errors import ConfigError, DataError


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


def test_finished_build_keeps_its_manifests_whatever_is_installed(own_copy, build, monkeypatch):
    monkeypatch.setattr(build_state, "version_of", lambda name: "99")
    paths = sorted([*own_copy.glob("instances/*/*.json"), *own_copy.rglob("*.arrow")])
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    tokenizers = {path: path.stat().st_ino for path in own_copy.rglob("tokenizer*")}
    build(own_copy)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before
    assert {path: path.stat().st_ino for path in own_copy.rglob("tokenizer*")} == tokenizers


def test_other_versions_are_refused_where_units_are_left(own_copy, build, make_config, monkeypatch):
    (own_copy / "instances" / "64" / "train-00000-00.arrow").unlink()
    installed = build_state.installed_versions(make_config())
    recorded = installed["sentencex"]
    monkeypatch.setattr(build_state, "version_of", lambda name: {**installed, "sentencex": "99"}[name])
    with pytest.raises(DataError, match=rf"sentencex {recorded} \(now 99\).*pip install sentencex=={recorded}\)"):
        build(own_copy)


def test_sentencepiece_counts_where_it_trains_the_vocabulary(make_config):
    given = make_config(pieces="unigram"), make_config(pieces="unigram", tokenizer="tokenizer"), make_config()
    assert ["sentencepiece" in build_state.installed_versions(config) for config in given] == [True, False, False]
    assert "sentencepiece" not in build_state.HARMLESS


def test_vocabulary_of_another_kind_after_a_refusal_records_its_package(build, tmp_path):
    texts = [f"Only sentence number {number}." for number in range(20)]
    with pytest.raises(DataError, match="20 of 20 documents have one sentence"):
        build(texts=texts)
    with pytest.raises(KeyboardInterrupt):
        build("out", Stopping(1), texts=texts, pieces="unigram", objective="none")
    assert "sentencepiece" in build_state.read_state(tmp_path / "out").versions


def test_packages_with_rules_count_and_are_named_once_they_are_gone(own_copy, monkeypatch):
    with pytest.raises(DataError, match=r"my-rules 0\.1 \(now missing\).*pip install my-rules==0\.1\)"):
        build_state.require_versions(own_copy, {"my-rules": "0.1", "numpy": "1.0"})
    state = build_state.read_state(own_copy)
    build_state.write_state(own_copy, replace(state, versions={**state.versions, "my-rules": "0.1"}))
    message = r"was begun with my-rules 0\.1 \(here: not installed\)\. Install that: pip install my-rules==0\.1$"
    with pytest.raises(ConfigError, match=message):
        build_state.read_state(own_copy)
