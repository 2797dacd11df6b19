"""Builds and shards of earlier versions: what is taken over, kept, finished in their form, or refused."""

import json

import pyarrow as pa
import pytest
from unit.data_prep.builds import hashes, read_shard

from data_prep.checks.verify import verify
from data_prep.execution import build_state
from data_prep.execution.executors import Executor
from data_prep.pipeline import build
from megabert.errors import DataError
from megabert.schema import ShardMetadata, instance_schema


def test_records_of_an_earlier_version_are_taken_over(built, own_copy, make_config, capsys):
    """Earlier versions wrote a file for each unit, with the hashes of its files and no time."""
    for records in (own_copy / "work" / "records").glob("*.jsonl"):
        folder = records.with_suffix("")
        folder.mkdir()
        for line in filter(str.strip, records.read_text().splitlines()):
            content = json.loads(line)
            files = {name: file[2] for name, file in content["files"].items()}
            record = {"files": files, "counts": content["counts"]}
            (folder / f"{content['name']}.json").write_text(json.dumps(record))
        records.unlink()
    (own_copy / "instances" / "64" / "train-00001-00.arrow").write_bytes(b"damaged")
    before = {path: path.stat().st_mtime_ns for path in own_copy.rglob("*.arrow")}
    build(make_config(), own_copy, Executor())
    changed = [path.name for path, time in before.items() if path.stat().st_mtime_ns != time]
    assert changed == ["train-00001-00.arrow"]
    assert hashes(own_copy) == hashes(built.folder)
    assert not [path for path in (own_copy / "work" / "records").iterdir() if path.is_dir()]


def test_build_that_an_earlier_version_began_is_finished_in_its_form(built, own_copy, make_config):
    folder = own_copy / "instances" / "64"
    for path in folder.glob("*.arrow"):
        with pa.ipc.open_file(path.read_bytes()) as reader:
            table = reader.read_all()
        with pa.ipc.new_file(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table.slice(0, 5))
    build(make_config(), own_copy, Executor())
    for path in folder.glob("*.arrow"):
        rows, is_compressed, batch_rows = read_shard(path)
        assert is_compressed
        assert batch_rows == len(rows)
        assert rows == read_shard(built.folder / "instances" / "64" / path.name)[0]


def test_finished_build_keeps_its_manifests_whatever_is_installed(own_copy, make_config, monkeypatch):
    monkeypatch.setattr(build_state, "installed_version", lambda name: "99")
    paths = sorted(own_copy.glob("instances/*/*.json"))
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    tokenizers = {path: path.stat().st_ino for path in own_copy.rglob("tokenizer*")}
    build(make_config(), own_copy, Executor())
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before
    assert {path: path.stat().st_ino for path in own_copy.rglob("tokenizer*")} == tokenizers


def test_other_versions_are_refused_where_units_are_left(own_copy, make_config, monkeypatch):
    (own_copy / "instances" / "64" / "train-00000-00.arrow").unlink()
    installed = build_state.installed_versions()
    recorded = installed["sentencex"]
    monkeypatch.setattr(build_state, "installed_version", lambda name: {**installed, "sentencex": "99"}[name])
    with pytest.raises(DataError, match=rf"sentencex {recorded} \(now 99\).*pip install sentencex=={recorded}\)"):
        build(make_config(), own_copy, Executor())


def test_shards_of_an_earlier_revision_are_kept_but_not_continued(make_config, tmp_path, monkeypatch):
    """An earlier version drew random next sentences in another way: its shards are read, and never mixed with ours."""
    with monkeypatch.context() as earlier:
        earlier.setattr(ShardMetadata, "latest_revision", 1)
        folder = build(make_config(), tmp_path / "out", Executor()).folder
    shards = folder / "instances" / "64"
    before = hashes(folder)
    assert "revision" not in (shards / "manifest.json").read_text()
    # Finished: the same command finds nothing to do, and the shards are checked as ever, but for their text.
    assert build(make_config(), folder, Executor()).manifests[64].metadata.revision == 1
    assert hashes(folder) == before
    assert verify(shards, Executor()).problems == []
    with pytest.raises(DataError, match=r"64: its pairs are of revision 1: .* Verify without --text"):
        verify(shards, Executor(), use_text=True)
    # Unfinished: refused, with what can be done.
    (shards / "train-00001-00.arrow").unlink()
    with pytest.raises(DataError, match=r"train-00001-00.arrow: .* or give --output a new folder"):
        build(make_config(), folder, Executor())


def test_new_draws_are_noted_where_they_differ(make_config, tokenizer_folder, tmp_path):
    for changes, revision in (
        ({}, 3),
        ({"pairing": "google"}, 3),
        ({"objective": "sop"}, 1),
        ({"objective": "sop", "mask_unit": "span"}, 2),
    ):
        config = make_config(tokenizer=str(tokenizer_folder), lengths=(64,), dupe_factor=1, **changes)
        manifest = build(config, tmp_path / str(len(str(changes))), Executor()).manifests[64]
        assert manifest.metadata.revision == revision
        assert instance_schema(manifest.metadata).metadata.get(b"megabert.revision", b"1") == str(revision).encode()
