"""Another setting in the folder of a build: what depends on it is made again, as in a new build, and nothing else."""

import json
from dataclasses import fields, replace
from unittest import mock

import pytest
from support.soak import in_soak
from unit.data_prep.builds import Stopping
from unit.data_prep.conftest import files_of

from data_prep import pipeline
from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.execution.build_state import REFUSED, read_state, write_state
from data_prep.execution.changes import FIRST_PART, PLAN_NAME, Part
from data_prep.execution.executors import Executor
from data_prep.pipeline import build_shards
from data_prep.steps import step5_documents
from megabert.foundation.errors import ConfigError, DataError
from megabert.settings.config.loading import merge_layers, to_dict
from megabert.tokens.shards.folder import read_manifest

CHANGES = (
    {"dupe_factor": 3},
    {"lengths": (64, 256)},
    {"validation_share": 0},
    {"buckets": 3},
    {"min_tokens": (0, 700)},
)
MORE = ({"masking": "dynamic"}, {"seed": 3}, {"pairing": "google"}, {"objective": "none"}, {"validation_share": 0.3})


def test_every_setting_says_what_it_reaches():
    names = {field.name for field in fields(BuildConfig)} - {"sources"}
    assert set(FIRST_PART) == names | {f"sources.{field.name}" for field in fields(SourceConfig)}


@pytest.mark.parametrize("changes", [*CHANGES, *in_soak(*MORE)], ids=str)
def test_changed_build_equals_a_new_one(own_copy, build, capsys, changes):
    documents = {path: path.stat().st_mtime_ns for path in (own_copy / "documents").iterdir()}
    changed = build(own_copy, **changes)
    said = capsys.readouterr().err
    assert f"changed: {next(iter(changes))}: " in said
    assert "repeated in " in said
    fresh = build("fresh", **changes)
    assert changed.manifests == fresh.manifests
    kept = [path for path in files_of(own_copy) if not path.startswith(("work/records", "instances/128"))]
    assert kept == [path for path in files_of(fresh.folder) if not path.startswith(("work/records", "instances/128"))]
    is_new = {path.stat().st_mtime_ns != documents.get(path) for path in (own_copy / "documents").iterdir()}
    assert is_new == {FIRST_PART[next(iter(changes))] is Part.DOCUMENTS}


def test_length_that_is_added_leaves_the_others_alone(own_copy, build):
    before = {path: path.stat().st_mtime_ns for path in (own_copy / "instances").rglob("*") if path.is_file()}
    build(own_copy, lengths=(64, 256))
    assert all(path.stat().st_mtime_ns == time for path, time in before.items() if path.name != "manifest.json")
    # A length that is asked for no more is still what it was, until something else changes.
    assert read_manifest(own_copy / "instances" / "128").metadata.max_seq_length == 128
    build(own_copy, lengths=(64, 256), seed=2)
    assert not (own_copy / "instances" / "128").exists()


@pytest.mark.parametrize("units", [0, 6, *in_soak(2, 12)])
@pytest.mark.parametrize("changes", [{"validation_share": 0.3}, *in_soak({"seed": 3})], ids=str)
def test_killed_change_is_continued_or_taken_back(own_copy, build, make_config, built, changes, units):
    with pytest.raises(KeyboardInterrupt):
        build(own_copy, Stopping(units), **changes)
    # No manifest lists shards of which some are of other settings.
    is_recorded = read_state(own_copy).config == to_dict(make_config(**changes))
    assert is_recorded == (units > 1)
    assert any((own_copy / "instances").rglob("manifest.json")) != is_recorded
    again = build(own_copy, **changes if units % 4 else {})
    assert again.manifests == built.manifests or units % 4
    assert build(own_copy).manifests == built.manifests


def test_share_changed_twice_before_it_is_done(own_copy, build):
    for share, units in ((0.3, 4), (0.5, 9)):
        with pytest.raises(KeyboardInterrupt):
            build(own_copy, Stopping(units), validation_share=share)
    last = {"validation_share": 0.2, "buckets": 2}
    assert build(own_copy, **last).manifests == build("new", **last).manifests


@pytest.mark.parametrize("changes", [{"vocab_size": 1000}, {"language": "de"}, {"chunk_mib": 1.0}], ids=str)
def test_change_of_text_or_vocabulary_is_refused_with_the_difference(own_copy, build, built, changes):
    (name, value), = changes.items()  # fmt: skip
    with pytest.raises(ConfigError, match=rf"(?s){name}: .* there, {value!r} now.*new folder"):
        build(own_copy, **changes)
    assert build(own_copy).manifests == built.manifests


def test_documents_stored_by_weight_are_not_split_again(corpus, tokenizer, tmp_path, megabert_data):
    settings = {"sources": [{"input": str(corpus), "weight": 0.5}], "tokenizer": tokenizer}
    settings |= {"lengths": [64], "dupe_factor": 1, "validation_share": 0.1}
    config = merge_layers(BuildConfig, settings)
    folder = build_shards(config, tmp_path / "out", Executor()).folder
    with pytest.raises(ConfigError, match=r"weights of their sources \(0.5\) and cannot be split again"):
        build_shards(replace(config, validation_share=0.3), folder, Stopping(0))  # no input is hashed before
    (tmp_path / "build.yaml").write_text(json.dumps(settings))
    flags = ["--config", str(tmp_path / "build.yaml"), "--output", str(folder), "--validation-share", "0.3"]
    assert "cannot be split again" in megabert_data("build", *flags, "--dry-run", code=2).err
    assert build_shards(replace(config, seed=3), folder, Executor()).manifests


def test_damaged_documents_are_not_split_again(own_copy, build):
    with pytest.raises(KeyboardInterrupt):
        build(own_copy, Stopping(3), validation_share=0.3)
    path = own_copy / "work" / "before" / "train-00000.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train-00000.arrow: damaged"):
        build(own_copy, validation_share=0.3)


def test_dry_run_says_what_a_change_repeats(own_copy, corpus, megabert_data):
    settings = "--dry-run --vocab-size 2000 --dupe-factor 2 --lengths 64 128 --workers 1 --validation-share"
    flags = ["--input", str(corpus), "--output", str(own_copy), *settings.split()]
    before = {path: path.stat().st_mtime_ns for path in own_copy.rglob("*")}
    assert "was begun with the same settings" in megabert_data("build", *flags, "0.1").out
    printed = megabert_data("build", *flags, "0.2").out
    assert "0.1 there, 0.2 now. Kept: text, vocabulary. Repeated: documents, instances" in printed
    assert "uncased: False there, True now" in megabert_data("build", *flags, "0.1", "--uncased", code=2).err
    assert before == {path: path.stat().st_mtime_ns for path in own_copy.rglob("*")}


@pytest.mark.parametrize(("is_plan_lost", "share"), [(True, 0.3), (False, 0.5)])
def test_documents_of_a_killed_clean_up_are_not_taken_for_others(own_copy, build, monkeypatch, is_plan_lost, share):
    """They were split again; they are neither the text that a build without a plan reads nor the next share's."""
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "_remove_work", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(own_copy, validation_share=0.3)
    if is_plan_lost:
        (own_copy / PLAN_NAME).unlink()
    assert build(own_copy, validation_share=share).manifests == build("new", validation_share=share).manifests


def test_other_input_after_a_refusal_leaves_no_manifest_of_the_earlier_one(own_copy, build):
    state = read_state(own_copy)
    write_state(own_copy, replace(state, inputs=[replace(record, sha256="another") for record in state.inputs]))
    (own_copy / REFUSED).touch()
    with pytest.raises(KeyboardInterrupt):
        build(own_copy, Stopping(1))  # the input is hashed, and nothing is read
    assert not list(own_copy.rglob("manifest.json"))


def test_few_buckets_are_refused_in_the_folder_of_a_build(own_copy, build, monkeypatch):
    monkeypatch.setattr(step5_documents, "ASKED_BUCKET_TOKENS", 1000)
    with pytest.raises(ConfigError, match=r"buckets=2 puts .* Leave buckets out, or give 192 or more"):
        build(own_copy, buckets=2)
