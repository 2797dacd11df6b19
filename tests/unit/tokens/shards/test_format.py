import json
from dataclasses import asdict, replace

import pyarrow as pa
import pytest

from megabert.foundation.errors import DataError
from megabert.tokens.shards.folder import Manifest, ShardEntry, read_manifest, write_manifest
from megabert.tokens.shards.format import ShardMetadata, instance_schema


@pytest.fixture
def folder(tmp_path, metadata):
    (tmp_path / "train-0000-0.arrow").write_bytes(b"x")
    (tmp_path / "validation-0000-0.arrow").write_bytes(b"y")
    shards = [
        ShardEntry("train-0000-0.arrow", "train", 3, 30, 6, "0" * 64, 0, 0),
        ShardEntry("validation-0000-0.arrow", "validation", 1, 9, 1, "1" * 64, 0, 0),
    ]
    write_manifest(tmp_path, Manifest(metadata=metadata, shards=shards, config={"seed": 7}))
    return tmp_path


def edit(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_shard(folder, index, **changes):
    shards = json.loads((folder / "manifest.json").read_text())["shards"]
    shards[index] |= changes
    edit(folder, shards=shards)


def test_manifest_is_read_as_written(folder, metadata):
    manifest = read_manifest(folder)
    assert manifest.metadata == metadata
    assert [shard.rows for shard in manifest.of_split("train")] == [3]
    assert manifest.totals()["validation"] == {"shards": 1, "rows": 1, "tokens": 9, "masked_tokens": 1}
    assert manifest.config == {"seed": 7}


def test_folder_without_manifest_is_unfinished_or_not_there(tmp_path):
    with pytest.raises(DataError, match="no finished folder"):
        read_manifest(tmp_path)
    with pytest.raises(DataError, match=f"There is no {tmp_path}/typo: check the path"):
        read_manifest(tmp_path / "typo" / "instances" / "128")


def test_manifest_without_shards_is_refused(folder, metadata):
    edit(folder, shards=[], totals={})
    with pytest.raises(DataError, match="lists no shards"):
        read_manifest(folder)
    with pytest.raises(DataError, match="no shard"):
        write_manifest(folder, Manifest(metadata=metadata, shards=[]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: edit(folder, format_version=3), "format_version=3"),
        (lambda folder: (folder / "train-0000-0.arrow").unlink(), r"train-0000-0\.arrow"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "damaged or edited"),
        (lambda folder: edit_shard(folder, 0, rows=4), "totals"),
        (lambda folder: edit_shard(folder, 0, file="../train-0000-0.arrow"), "plain file name"),
    ],
)
def test_damage_of_a_folder_is_refused(folder, damage, message):
    damage(folder)
    with pytest.raises(DataError, match=message):
        read_manifest(folder)


@pytest.mark.parametrize(("field", "value"), [("rows", "3"), ("sha256", None), ("split", "test"), ("color", "red")])
def test_wrong_or_unknown_field_of_a_shard_is_named(folder, field, value):
    edit_shard(folder, 1, **{field: value})
    with pytest.raises(DataError, match=rf"manifest.json: damaged or edited \(shards\.1\.{field}: "):
        read_manifest(folder)


def test_data_digest_is_of_the_instances_alone(folder):
    manifest = read_manifest(folder)
    same = replace(manifest, config={"sources": "elsewhere"}, versions={"sentencex": "99"}, statistics={})
    assert same.data_sha256 == manifest.data_sha256
    first, *rest = manifest.shards
    for change in ({"rows": first.rows + 1}, {"sha256": "2" * 64}, {"split": "validation"}):
        assert replace(manifest, shards=[replace(first, **change), *rest]).data_sha256 != manifest.data_sha256
    other = replace(manifest, metadata=replace(manifest.metadata, seed=manifest.metadata.seed + 1))
    assert other.data_sha256 != manifest.data_sha256


def test_metadata_survives_arrow(metadata):
    assert ShardMetadata.from_arrow(instance_schema(metadata)) == metadata


@pytest.mark.parametrize(("size", "expected"), [(65_536, pa.uint16()), (65_537, pa.uint32())])
def test_ids_take_the_narrowest_type(metadata, size, expected):
    schema = instance_schema(replace(metadata, vocab_size=size))
    assert schema.field("input_ids").type.value_type == expected
    assert schema.field("masked_lm_ids").type.value_type == expected


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda _: ShardMetadata.from_arrow(pa.schema([("text", pa.string())]), "x.arrow"), "not an instance shard"),
        (lambda own: ShardMetadata.from_arrow(instance_schema(own).remove(1), "x.arrow"), "columns"),
        (lambda own: ShardMetadata.from_dict({**asdict(own), "format_version": 99}), "format_version=99"),
        (lambda own: ShardMetadata.from_dict({**asdict(own), "objective": "clm"}), "should be 'nsp', 'sop' or 'none'"),
        (lambda own: replace(own, special_ids={"pad": 0, "unk": 1, "cls": 2, "sep": 3}), "lacks mask"),
    ],
    ids=["foreign schema", "other columns", "another version", "unknown objective", "no [MASK]"],
)
def test_metadata_that_is_not_ours_is_refused(metadata, read, message):
    with pytest.raises(DataError, match=message):
        read(metadata)
