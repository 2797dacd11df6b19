"""Rows read from shards, and shards that are damaged."""

import errno
import os
import resource
import shutil
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pytest

from megabert.foundation.errors import DataError
from megabert.foundation.files import sha256_file
from megabert.settings.command_line.failures import as_user_error
from megabert.tokens.shards import copy_loops, shard_file, shard_set
from megabert.tokens.shards.checked_shards import verify_shards
from megabert.tokens.shards.shard_set import ShardSet


def _row(columns, i):
    tokens = columns.input_ids[columns.token_starts[i] : columns.token_starts[i + 1]].tolist()
    masked = slice(columns.masked_starts[i], columns.masked_starts[i + 1])
    return (
        tokens,
        int(columns.segment_b_starts[i]),
        columns.masked_positions[masked].tolist(),
        columns.masked_ids[masked].tolist(),
        int(columns.next_sentence_labels[i]),
    )


def _expected(instance):
    return tuple(instance.__dict__.values())


def test_columns_over_shards_and_batches_equal_the_rows_written(shard_folder, train_instances):
    shards = ShardSet.open(shard_folder)
    spans = ((640, 900), (0, 70), (1110, 1111))
    columns = shards.columns(spans)
    rows = [row for first, stop in spans for row in range(first, stop)]
    assert columns.rows.tolist() == rows
    assert columns.lengths.tolist() == [len(train_instances[row].input_ids) for row in rows]
    assert [_row(columns, i) for i in range(len(rows))] == [_expected(train_instances[row]) for row in rows]


def test_statistics_are_those_of_the_split(shard_folder, train_instances):
    statistics = ShardSet.open(shard_folder).statistics
    assert statistics.rows == len(train_instances)
    assert statistics.tokens == sum(len(i.input_ids) for i in train_instances)
    assert ShardSet.open(shard_folder, "validation").num_rows == 97


@pytest.mark.parametrize("content", ["offsets past the values", "null rows"])
def test_what_arrow_takes_for_granted_is_checked(copied, content):
    path = copied / "train-00001.arrow"
    with pa.ipc.open_file(path.read_bytes()) as reader:
        batch = reader.get_batch(0)
    if content == "null rows":
        ids = pa.array([None, *batch["input_ids"].to_pylist()[1:]], batch["input_ids"].type)
    else:  # a segmentation fault where the offset is followed
        offsets = np.asarray(batch["input_ids"].offsets).copy()
        offsets[5] += 2**30
        buffers = [None, pa.py_buffer(offsets)]
        ids = pa.Array.from_buffers(batch["input_ids"].type, len(batch), buffers, children=[batch["input_ids"].values])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(pa.record_batch([ids, *batch.columns[1:]], schema=batch.schema))
    shards = ShardSet.open(copied)
    index = [shard.file for shard in shards.shards].index(path.name)
    shards.shards[index] = replace(shards.shards[index], rows=len(batch), sha256=sha256_file(path))
    with pytest.raises(DataError, match=r"00001\.arrow: record batch 0.*(cannot be read|null values)"):
        verify_shards(shards)


def cut(folder):
    path = folder / "train-00001.arrow"
    path.write_bytes(path.read_bytes()[:-200])


def copy_another(folder):
    shutil.copy(folder / "train-00001.arrow", folder / "train-00002.arrow")


def change_seed(folder):
    path = folder / "train-00000.arrow"
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    metadata = {**table.schema.metadata, b"megabert.seed": b"77"}
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"train-00001\.arrow.*cannot be read"),
        (copy_another, r"train-00002\.arrow.*manifest says"),
        (change_seed, r"train-00000\.arrow.*differ"),
    ],
)
def test_shard_that_is_not_the_manifests_is_named(copied, damage, message):
    damage(copied)
    with pytest.raises(DataError, match=message):
        ShardSet.open(copied).columns(((0, 1111),))


def test_longer_instances_than_the_metadata_say_are_named(make, tmp_path):
    folder = make.shards(tmp_path / "long", {"train": [make.instances(50, 32, 1000, seed=3)]}, length=16)
    with pytest.raises(DataError, match=r"0\.arrow: row \d+: the length of input_ids is \d+, allowed is 5 to 16"):
        ShardSet.open(folder).columns(((0, 50),))


def test_missing_split_and_unfinished_folder_are_errors(shard_folder, tmp_path):
    with pytest.raises(DataError, match="no instances of split 'test'"):
        ShardSet.open(shard_folder, "test")
    with pytest.raises(DataError):
        ShardSet.open(tmp_path)


@pytest.fixture
def with_tokenizer(copied):
    """A copy of the shards, with a tokenizer that is not theirs."""
    (copied / "tokenizer").mkdir()
    (copied / "tokenizer" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nship\n")
    return copied


def test_tokenizer_is_copied_once(with_tokenizer, tmp_path):
    vocabulary = (with_tokenizer / "tokenizer" / "vocab.txt").read_text()
    for _ in range(2):
        ShardSet.open(with_tokenizer).copy_tokenizer(tmp_path / "tokenizer")
    assert (tmp_path / "tokenizer" / "vocab.txt").read_text() == vocabulary
    assert {path.name for path in tmp_path.iterdir()} == {"copy", "tokenizer"}


def test_tokenizer_that_links_to_another_place_is_not_copied(with_tokenizer, tmp_path):
    (tmp_path / "private").write_text("a secret")
    (with_tokenizer / "tokenizer" / "merges.txt").symlink_to(tmp_path / "private")
    with pytest.raises(DataError, match=r"merges.txt: is a link to .*private"):
        ShardSet.open(with_tokenizer).copy_tokenizer(tmp_path / "tokenizer")
    assert not (tmp_path / "tokenizer").exists()


def test_tokenizer_has_to_be_that_of_the_shards(shard_folder, with_tokenizer):
    with pytest.raises(DataError, match="tokenizer: not there"):
        ShardSet.open(shard_folder).check_tokenizer()
    with pytest.raises(DataError, match="is not the tokenizer that the shards were built with"):
        ShardSet.open(with_tokenizer).check_tokenizer()


@pytest.mark.parametrize(
    ("descriptors", "most"), [(1024, 64), (4096, 256), (65_536, 256), (resource.RLIM_INFINITY, 256), (8, 1)]
)
def test_open_shards_leave_descriptors_to_others(descriptors, most):
    assert shard_set._most_open_shards(descriptors) == most


def test_too_many_open_files_are_not_blamed_on_the_shard(shard_folder, monkeypatch):
    def refuse(path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(shard_file, "_map", refuse)
    with pytest.raises(OSError, match="Too many open files") as error:
        ShardSet.open(shard_folder).rows(np.array([0]))
    assert "ulimit -n" in str(as_user_error(error.value))


@pytest.mark.parametrize("open_shards", [256, 1])
def test_rows_of_several_record_batches_and_shards_are_read(make, train_instances, tmp_path, open_shards, monkeypatch):
    monkeypatch.setattr(shard_file, "rows_per_batch", lambda _: 100)
    monkeypatch.setattr(shard_set, "_opened", lru_cache(open_shards)(shard_set._opened.__wrapped__))
    folder = make.shards(tmp_path / "shards", {"train": make.split(train_instances, 4)}, batch_rows=100)
    shards = ShardSet.open(folder)
    assert shards.sizes(((700, 1111),)).lengths.tolist() == [len(row.input_ids) for row in train_instances[700:]]
    rows = [*np.random.default_rng(3).permutation(1111), 5, 1110, 5]
    columns = shards.rows(np.array(rows))
    assert [_row(columns, i) for i in range(len(rows))] == [_expected(train_instances[row]) for row in rows]


@pytest.mark.parametrize(
    ("options", "rows_per_batch", "problem"),
    [
        ({"compression": "zstd"}, 1024, "record batch 0 is compressed, or not laid out as a build writes it"),
        ({"batch_rows": 7}, 1024, "its 40 rows are in 6 record batches, the first of 7; a build writes 1 of 1024"),
        ({"batch_rows": 24}, 30, "its 40 rows are in 2 record batches, the first of 24; a build writes 2 of 30"),
    ],
    ids=["compressed", "more batches", "uneven batches"],
)
def test_another_layout_is_refused_with_the_remedy(make, tmp_path, monkeypatch, options, rows_per_batch, problem):
    monkeypatch.setattr(shard_file, "rows_per_batch", lambda _: rows_per_batch)
    folder = make.shards(tmp_path / "other", {"train": [make.instances(40, 32, 1000, seed=5)]}, **options)
    with pytest.raises(DataError, match=rf"train-00000\.arrow: {problem}\. Build the shards again"):
        ShardSet.open(folder).rows(np.arange(40))


@pytest.mark.parametrize(
    ("offset", "metadata"), [(2**63 - 8, 2**31 - 8), (2**63 - 2**20, 2**31 - 8), (2**40, 48), (-8, 16)]
)
def test_footer_that_leads_outside_is_named(make, tmp_path, offset, metadata):
    folder = make.shards(tmp_path, {"train": [make.instances(9, 32, 1000, seed=5)]})
    path = folder / "train-00000.arrow"
    content, (_, footer) = path.read_bytes(), shard_file._map(path)
    blocks, _ = shard_file._blocks(footer, copy_loops.BLOCK)
    block = np.array([(offset, metadata, 0, blocks[0]["body"])], copy_loops.BLOCK)
    assert content.count(blocks.tobytes()) == 1
    path.write_bytes(content.replace(blocks.tobytes(), block.tobytes()))
    with pytest.raises(DataError, match=r"train-00000\.arrow: record batch 0 cannot be read"):
        ShardSet.open(folder).rows(np.array([0]))


@pytest.mark.parametrize(
    "options",
    [{}, {"vocab_size": 100_000}, {"objective": "none"}, {"masking": "dynamic"}],
    ids=["uint16", "uint32", "no_pairs", "no_masks"],
)
def test_rows_are_copied_without_pyarrow(make, tmp_path, options):
    rows = make.instances(300, 32, 1000, seed=5, objective=options.get("objective", "nsp"))
    if options.get("masking") == "dynamic":
        rows = [replace(row, masked_lm_positions=[], masked_lm_ids=[]) for row in rows]
    folder = make.shards(tmp_path / "plain", {"train": [rows[:90], rows[90:]]}, **options)
    shards = ShardSet.open(folder)
    order = np.random.default_rng(0).permutation(300)
    columns = shards.rows(order)
    assert [_row(columns, i) for i in range(300)] == [_expected(rows[row]) for row in order]
    # The first one is opened by pyarrow as well, which looks at its schema.
    assert sorted("_reader" in vars(file) for file in map(shards._open, range(2))) == [False, True]


def test_flipped_bits_in_front_of_the_values_are_an_error_or_change_one_value(make, tmp_path):
    rows = make.instances(40, 32, 1000, seed=5)
    folder = make.shards(tmp_path / "plain", {"train": [rows]})
    path = next(folder.glob("*.arrow"))
    content = path.read_bytes()
    start = content.index(b"\xff\xff\xff\xff", 16)  # the record batch's message, after the schema's
    expected = [_expected(row) for row in rows]
    outcomes = set()
    for position in range(start, start + 900, 7):
        damaged = bytearray(content)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        try:
            columns = ShardSet.open(folder).columns(((0, 40),))
        except DataError as error:
            outcomes.add("error" if path.name in str(error) else "nameless error")
        else:
            same = [_row(columns, i) == row for i, row in enumerate(expected)]
            outcomes.add("same" if all(same) else "other")
            assert sum(same) >= 38
    assert {"error", "same"} <= outcomes <= {"error", "same", "other"}
