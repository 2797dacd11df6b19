"""Which versions of packages a build asks for."""

from dataclasses import replace

import pytest
from unit.data_prep.builds import Stopping

from data_prep.execution import build_state
from megabert.foundation.errors import ConfigError, DataError


def test_finished_build_keeps_its_manifests_whatever_is_installed(own_copy, build, monkeypatch):
    monkeypatch.setattr(build_state, "installed_version", lambda name: "99")
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
    monkeypatch.setattr(build_state, "installed_version", lambda name: {**installed, "sentencex": "99"}[name])
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
