"""Which versions of packages a build asks for."""

from dataclasses import replace

import pytest
from unit.data_prep.builds import Stopping
from unit.data_prep.conftest import write_jsonl

from data_prep.config.build import SourceConfig
from data_prep.execution import build_state
from data_prep.execution.executors import Executor
from data_prep.pipeline import build_shards
from megabert.foundation.errors import ConfigError, DataError


def test_finished_build_keeps_its_manifests_whatever_is_installed(own_copy, make_config, monkeypatch):
    monkeypatch.setattr(build_state, "installed_version", lambda name: "99")
    paths = sorted(own_copy.glob("instances/*/*.json"))
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    tokenizers = {path: path.stat().st_ino for path in own_copy.rglob("tokenizer*")}
    build_shards(make_config(), own_copy, Executor())
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before
    assert {path: path.stat().st_ino for path in own_copy.rglob("tokenizer*")} == tokenizers


def test_other_versions_are_refused_where_units_are_left(own_copy, make_config, monkeypatch):
    (own_copy / "instances" / "64" / "train-00000-00.arrow").unlink()
    installed = build_state.installed_versions(make_config())
    recorded = installed["sentencex"]
    monkeypatch.setattr(build_state, "installed_version", lambda name: {**installed, "sentencex": "99"}[name])
    with pytest.raises(DataError, match=rf"sentencex {recorded} \(now 99\).*pip install sentencex=={recorded}\)"):
        build_shards(make_config(), own_copy, Executor())


def test_sentencepiece_counts_where_it_trains_the_vocabulary(make_config):
    given = make_config(pieces="unigram"), make_config(pieces="unigram", tokenizer="tokenizer"), make_config()
    assert ["sentencepiece" in build_state.installed_versions(config) for config in given] == [True, False, False]
    assert "sentencepiece" not in build_state.HARMLESS


def test_vocabulary_of_another_kind_after_a_refusal_records_its_package(make_config, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [f"Only sentence number {number}." for number in range(20)])
    config = make_config(sources=(SourceConfig(input=str(path)),))
    with pytest.raises(DataError, match="20 of 20 documents have one sentence"):
        build_shards(config, tmp_path / "out", Executor())
    with pytest.raises(KeyboardInterrupt):
        build_shards(replace(config, pieces="unigram", objective="none"), tmp_path / "out", Stopping(1))
    assert "sentencepiece" in build_state.read_state(tmp_path / "out").versions


def test_packages_with_rules_count_and_are_named_once_they_are_gone(own_copy, monkeypatch):
    with pytest.raises(DataError, match=r"my-rules 0\.1 \(now missing\).*pip install my-rules==0\.1\)"):
        build_state.require_versions(own_copy, {"my-rules": "0.1", "numpy": "1.0"})
    state = build_state.read_state(own_copy)
    build_state.write_state(own_copy, replace(state, versions={**state.versions, "my-rules": "0.1"}))
    message = r"was begun with my-rules 0\.1 \(here: not installed\)\. Install that: pip install my-rules==0\.1$"
    with pytest.raises(ConfigError, match=message):
        build_state.read_state(own_copy)
