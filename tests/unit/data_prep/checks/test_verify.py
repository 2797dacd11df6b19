import dataclasses
import json
import re

import numpy as np
import pyarrow as pa
import pytest

from data_prep.checks.invariants import Rules
from data_prep.checks.verify import verify
from data_prep.documents.document_set import tokenizer_of
from data_prep.execution.executors import Executor
from megabert.foundation.errors import DataError
from megabert.foundation.files import sha256_file
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.folder import lengths_path, read_manifest, write_manifest
from megabert.tokens.shards.format import rows_per_batch


@pytest.mark.parametrize("length", [64, 128])
def test_every_instance_is_sound(built, length):
    folder = built.folder / "instances" / str(length)
    verdict = verify(folder, Executor(), use_text=True)
    assert (verdict.problems, verdict.instances) == ([], sum(entry.rows for entry in read_manifest(folder).shards))


def rewrite(folder, change):
    """Change the first batch of the first shard and make the manifest agree with it."""
    manifest = read_manifest(folder)
    path = folder / manifest.shards[0].file
    with pa.ipc.open_file(path) as reader:
        table, schema = reader.read_all(), reader.schema
    rows = table.to_pylist()
    change(rows)
    with pa.ipc.new_file(str(path), schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=schema), rows_per_batch(manifest.metadata.max_seq_length))
    entry = dataclasses.replace(
        manifest.shards[0],
        sha256=sha256_file(path),
        tokens=sum(len(row["input_ids"]) for row in rows),
        masked_tokens=sum(len(row["masked_lm_positions"]) for row in rows),
    )
    write_manifest(folder, dataclasses.replace(manifest, shards=[entry, *manifest.shards[1:]]))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def reverse_lengths(path):
    np.save(lengths_path(path), np.load(lengths_path(path))[::-1].copy())


def count_a_row_more(path):
    values = json.loads(path.read_text())
    values["totals"]["train"]["rows"] += 1
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("damage", "name", "says"),
    [
        (flip, "instances/64/train-00001-00.arrow", "train-00001-00.arrow: .*bytes changed"),
        (reverse_lengths, "instances/64/train-00001-00.arrow", r"\.npy: says other lengths than the shard. Delete it"),
        (count_a_row_more, "instances/64/manifest.json", "totals"),
        (cut, "tokenizer/vocab.txt", "tokenizer/vocab.txt"),
        (cut, "instances/64/tokenizer/tokenizer_config.json", "64/tokenizer/tokenizer_config.json: .* Run the same"),
        (cut, "build.json", "build.json: damaged or edited"),
    ],
)
def test_damaged_file_is_named_and_no_other(own_copy, megabert_data, damage, name, says):
    damage(own_copy / name)
    said = megabert_data("verify", own_copy, "--workers", "1", code=3).err
    assert re.search(says, said), said
    assert len(set(re.findall(r"(\S+\.arrow):", said))) <= 1


def shown_word(row):
    """Return a place that is neither masked nor a border."""
    return next(i for i in range(1, 20) if i not in row["masked_lm_positions"] and i + 1 != row["segment_b_start"])


def set_word(row, piece):
    place = shown_word(row)
    row["input_ids"][place] = piece + (row["input_ids"][place] == piece)


def drop_prediction(row):
    row["input_ids"][row["masked_lm_positions"].pop()] = row["masked_lm_ids"].pop()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.update(next_sentence_label=1 - row["next_sentence_label"]), "label"),
        (lambda row: set_word(row, 77), "text is not that of its pair"),
        (lambda row: row.update(segment_b_start=row["segment_b_start"] + 1), "segment_b_start|is where text"),
        (lambda row: row["masked_lm_positions"].reverse(), "have to ascend"),
        (drop_prediction, "number of predictions"),
        (lambda row: set_word(row, 4), "is where text"),
        (lambda row: row.update(input_ids=row["input_ids"] * 3), "length of input_ids"),
    ],
)
def test_damage_under_a_right_hash_is_found(own_copy, change, message):
    folder = own_copy / "instances" / "64"
    rewrite(folder, lambda rows: change(rows[5]))
    (problem, *_) = verify(folder, Executor(), use_text=True).problems
    assert re.search(message, problem), problem
    assert read_manifest(folder).shards[0].file in problem
    assert "row 5" in problem or "text" in problem


def test_shards_without_their_documents_are_checked_too(own_copy):
    (own_copy / "documents" / "train-buckets.npy").unlink()
    verdict = verify(own_copy / "instances" / "64", Executor())
    assert verdict.problems == []
    with pytest.raises(DataError, match="documents: the build's documents are not there"):
        verify(own_copy / "instances" / "64", Executor(), use_text=True)


def test_rules_hold_for_a_batch_without_rows(built):
    manifest = built.manifests[64]
    with pa.ipc.open_file(built.folder / "instances" / "64" / manifest.shards[0].file) as reader:
        batch = FlatInstances.of(reader.get_batch(0).slice(0, 0))
    assert Rules.of(manifest.metadata, tokenizer_of(built.folder / "tokenizer")).broken(batch) == {}


def test_statistics_that_differ_from_the_shards_are_named(own_copy):
    folder = own_copy / "instances" / "64"
    manifest = read_manifest(folder)
    counts = manifest.statistics["instances"]["train"]
    counts["shown_as_mask"] += 1
    manifest.statistics["corpus"]["tokens"] += 1
    write_manifest(folder, manifest)
    said, is_so = counts["shown_as_mask"], counts["shown_as_mask"] - 1
    problems = verify(folder, Executor(), use_text=True).problems
    assert f"its statistics say shown_as_mask={said} of train, the shards {is_so}" in problems[0]
    assert re.search(r"its statistics say \d+ tokens, .*documents has \d+", problems[1])
    assert len(verify(folder, Executor()).problems) == 1


def test_shard_that_lacks_rows_of_its_documents_is_named(own_copy):
    folder = own_copy / "instances" / "64"
    rewrite(folder, lambda rows: rows.pop())
    manifest = read_manifest(folder)
    fewer = dataclasses.replace(manifest.shards[0], rows=manifest.shards[0].rows - 1)
    write_manifest(folder, dataclasses.replace(manifest, shards=[fewer, *manifest.shards[1:]], statistics={}))
    problems = verify(folder, Executor(), use_text=True).problems
    assert f"it has {fewer.rows} rows, the documents give {fewer.rows + 1}" in problems[0]
