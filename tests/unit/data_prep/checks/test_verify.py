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
    verdict = verify(built.folder / "instances" / str(length), Executor(), use_text=True)
    assert verdict.problems == []
    assert verdict.instances == sum(
        entry.rows for entry in read_manifest(built.folder / "instances" / str(length)).shards
    )


def test_flipped_byte_is_named(own_copy, megabert_data):
    shard = sorted((own_copy / "instances" / "64").glob("train-*.arrow"))[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    message = megabert_data("verify", own_copy, "--workers", "1", code=3).err
    assert shard.name in message
    assert "bytes changed" in message
    assert message.count(".arrow:") == 1


def test_lengths_index_that_differs_from_its_shard_is_named(own_copy, megabert_data):
    path = lengths_path(sorted((own_copy / "instances" / "64").glob("train-*.arrow"))[1])
    np.save(path, np.load(path)[::-1].copy())
    said = megabert_data("verify", own_copy, "--workers", "1", code=3).err
    assert f"{path}: says other lengths than the shard. Delete it" in said


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


@pytest.mark.parametrize(
    "name", ["tokenizer/vocab.txt", "instances/64/tokenizer/tokenizer_config.json", "build.json: damaged or edited"]
)
def test_cut_file_is_named(own_copy, megabert_data, name):
    path = own_copy / name.partition(":")[0]
    path.write_bytes(path.read_bytes()[:-9])
    assert name in megabert_data("verify", own_copy, "--workers", "1", code=3).err


def swap_label(rows):
    rows[5]["next_sentence_label"] ^= 1


def shown_word(row):
    """Return a place that is neither masked nor a border."""
    return next(i for i in range(1, 20) if i not in row["masked_lm_positions"] and i + 1 != row["segment_b_start"])


def change_word(rows):
    place = shown_word(rows[5])
    rows[5]["input_ids"][place] = 77 if rows[5]["input_ids"][place] != 77 else 78


def move_border(rows):
    rows[5]["segment_b_start"] += 1


def unsort(rows):
    rows[5]["masked_lm_positions"].reverse()


def drop_prediction(rows):
    rows[5]["input_ids"][rows[5]["masked_lm_positions"].pop()] = rows[5]["masked_lm_ids"].pop()


def hide_word(rows):
    rows[5]["input_ids"][shown_word(rows[5])] = 4


def lengthen(rows):
    rows[5]["input_ids"] = rows[5]["input_ids"] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap_label, "label"),
        (change_word, "text is not that of its pair"),
        (move_border, "segment_b_start|is where text"),
        (unsort, "have to ascend"),
        (drop_prediction, "number of predictions"),
        (hide_word, "is where text"),
        (lengthen, "length of input_ids"),
    ],
)
def test_damage_under_a_right_hash_is_found(own_copy, change, message):
    folder = own_copy / "instances" / "64"
    rewrite(folder, change)
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


def test_unlike_totals_are_refused(own_copy, megabert_data):
    path = own_copy / "instances" / "64" / "manifest.json"
    values = json.loads(path.read_text())
    values["totals"]["train"]["rows"] += 1
    path.write_text(json.dumps(values))
    assert "totals" in megabert_data("verify", own_copy, "--workers", "1", code=3).err


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
