"""Lists of ids out of files: every container gives the same lists, and whatever is no id is refused with its place."""

import gzip
import json
import os
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.config.build import SourceConfig
from data_prep.execution.records import Problems
from data_prep.extract import inputs
from data_prep.extract.ids import IdChecker, id_documents
from data_prep.extract.inputs import find_files, plan_chunks
from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import word_level_tokenizer
from megabert.tokens.tokenization.special_pieces import SpecialNames

LISTS = [[5, 6, 7], [], [29, 1, 5], [8] * 40, [9]]
SYMBOLS = [*SpecialNames(), *map(str, range(5, 30))]


def read(path, chunk_bytes=1 << 30, problems=None, **options):
    """Return the lists of all chunks of files."""
    checker = IdChecker(word_level_tokenizer(SYMBOLS, SpecialNames(), where="symbols"))
    files = find_files((SourceConfig(input=str(path), format="ids", **options),))
    chunks = plan_chunks(files, chunk_bytes)
    read = [document for chunk in chunks for document in id_documents(chunk, checker, problems or Problems())]
    return [[side.tolist() for side in sides] for sides in read], len(chunks)


def write_arrays(folder, ids, offsets, dtype=np.uint8):
    np.save(folder / "a.npy", np.array(ids, dtype))
    np.save(folder / "a.offsets.npy", np.array(offsets))
    return folder / "a.npy"


def write_lists(folder, container, lists, kind=None):
    """Write lists in one of the containers; return the path."""
    path = folder / f"a.{container}"
    if container == "jsonl":
        path.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in lists))
    elif container == "npy":
        write_arrays(folder, list(chain.from_iterable(lists)), np.cumsum([0, *map(len, lists)]))
    else:
        table = pa.table({"other": ["x"] * len(lists), "input_ids": pa.array(lists, kind or pa.list_(pa.uint16()))})
        if container == "parquet":
            pq.write_table(table, path, row_group_size=2)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=2)
    return path


@pytest.mark.parametrize("container", ["jsonl", "parquet", "arrow", "npy"])
@pytest.mark.parametrize("chunk_bytes", [1, 16, 1 << 30])
def test_containers_give_the_same_lists(tmp_path, monkeypatch, container, chunk_bytes):
    monkeypatch.setattr(inputs, "chunk_size", lambda total, size: size)
    path = write_lists(tmp_path, container, LISTS)
    lists, chunks = read(path, chunk_bytes)
    assert lists == [[ids] for ids in LISTS]
    assert (chunks > 1) == (chunk_bytes < 100)


def test_bare_lists_and_wide_columns_are_read(tmp_path):
    (tmp_path / "b.jsonl").write_text("[5, 6]\n\n[7]\n")
    assert read(tmp_path / "b.jsonl")[0] == [[[5, 6]], [[7]]]
    path = write_lists(tmp_path, "arrow", [[5, 6], None], kind=pa.large_list(pa.int64()))
    assert read(path)[0] == [[[5, 6]], [[]]]


def test_pairs_have_two_lists(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": [5], "b": [6, 7]}\n{"a": [], "b": []}\n')
    assert read(tmp_path / "a.jsonl", field="a", second_field="b")[0] == [[[5], [6, 7]], [[], []]]
    pq.write_table(pa.table({"b": [[6, 7]], "a": [[5]]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", field="a", second_field="b")[0] == [[[5], [6, 7]]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"input_ids": [5, -1]}', r"a.jsonl: line 2: -1 at index 1 is no id: allowed are 0 to 29"),
        ('{"input_ids": [30]}', r"line 2: 30 at index 0 is no id: allowed are 0 to 29"),
        ('{"input_ids": [5, 6, 4]}', r"line 2: 4 at index 2 is the special id \[MASK\]"),
        ('{"input_ids": [5, 6.0]}', r"line 2: 6.0 at index 1 of 'input_ids' is no whole number"),
        ('{"input_ids": [true]}', r"line 2: true at index 0"),
        ('{"input_ids": [5, [6]]}', r"line 2: \[6\] at index 1"),
        ('{"input_ids": [36893488147419103232]}', r"line 2: 36893488147419103232 at index 0 .* more than 64 bits"),
        ('{"input_ids": "5 6"}', r"line 2: has no list under the key 'input_ids' \(keys: input_ids\)"),
        ('{"ids": [5]}', r"line 2: has no list under the key 'input_ids' \(keys: ids\)"),
        ("5", r"line 2: holds a int, not a JSON object"),
        ("[5, 6", r"line 2: is no JSON"),
    ],
)
def test_wrong_lines_are_refused_with_their_place(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text(f"[5]\n{line}\n[6]\n")
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.jsonl")
    problems = Problems(is_strict=False)
    assert read(tmp_path / "a.jsonl", problems=problems)[0] == [[[5]], [[6]]]
    assert problems.counts == {"bad_ids": 1}


@pytest.mark.parametrize("container", ["parquet", "arrow", "npy"])
def test_wrong_ids_of_columns_and_arrays_are_refused_with_their_place(tmp_path, container):
    path = write_lists(tmp_path, container, [[5], [6, 200]])
    place = "list 1" if container == "npy" else "row 1 of part 0"
    with pytest.raises(DataError, match=f"a.{container}: {place}: 200 at index 1 is no id"):
        read(path)


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.string()), pa.float32()])
def test_columns_of_other_types_are_refused(tmp_path, kind):
    values = [1.5] if kind == pa.float32() else [[]]
    with pytest.raises(DataError, match=r"'input_ids' holds .* not lists of whole numbers"):
        read(write_lists(tmp_path, "arrow", values, kind=kind))


def test_missing_values_are_refused(tmp_path):
    with pytest.raises(DataError, match="row 1 of part 0: the value at index 1 of 'input_ids' is missing"):
        read(write_lists(tmp_path, "parquet", [[5], [6, None]]))


def test_an_empty_side_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": [5], "b": []}\n')
    with pytest.raises(DataError, match="line 1: one side of the pair is empty"):
        read(tmp_path / "a.jsonl", field="a", second_field="b")


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 3, 2, 4], r"a.offsets.npy: the offsets descend: 3 at index 1 and then 2"),
        ([0, 3], r"a.offsets.npy: the offsets are 0 to 3; .* end with 4"),
        ([1, 4], r"the offsets are 1 to 4"),
        ([], r"a.offsets.npy: holds float64"),
        ([[0, 4]], r"a.offsets.npy: holds int64 of shape \(1, 2\)"),
    ],
)
def test_ragged_offsets_are_refused(tmp_path, offsets, message):
    with pytest.raises(DataError, match=message):
        read(write_arrays(tmp_path, [5, 6, 7, 8], offsets))


def test_readers_check_the_offsets_of_their_own_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "chunk_size", lambda total, size: size)
    checker = IdChecker(word_level_tokenizer(SYMBOLS, SpecialNames(), where="symbols"))
    path = write_arrays(tmp_path, [5, 6, 7, 8], [0, 1, 2, 3, 4])
    first, last = plan_chunks(find_files((SourceConfig(input=str(path), format="ids"),)), 2)
    write_arrays(tmp_path, [5, 6, 7, 8], [0, 1, 2, 1, 4])
    times = path.stat().st_atime_ns, first.file.modified_ns
    os.utime(path, ns=times)
    assert [sides[0].tolist() for sides in id_documents(first, checker, Problems())] == [[5], [6]]
    with pytest.raises(DataError, match="offsets descend: 2 at index 2 and then 1"):
        list(id_documents(last, checker, Problems()))


def test_arrays_of_other_types_and_without_offsets_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"a.npy: holds float32 of shape"):
        read(write_arrays(tmp_path, [5.0], [0, 1], np.float32))
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY, cut")
    with pytest.raises(DataError, match=r"a.npy: cannot be read as an array of ids"):
        read(tmp_path / "a.npy")
    with (tmp_path / "a.npy").open("wb") as archive:
        np.savez(archive, ids=np.array([5, 6, 7]))
    with pytest.raises(DataError, match=r"a.npy: cannot be read as an array of ids \(it is an archive"):
        read(tmp_path / "a.npy")
    (tmp_path / "a.offsets.npy").unlink()
    with pytest.raises(DataError, match=r"a.offsets.npy: is missing; it says where each list of ids begins"):
        read(tmp_path / "a.npy")


def test_offsets_without_their_array_are_refused(tmp_path):
    write_arrays(tmp_path, [5, 6, 7], [0, 2, 3])
    np.save(tmp_path / "b.offsets.npy", np.array([0, 3]))
    with pytest.raises(DataError, match=r"/b.offsets.npy: its array .*/b.npy is not among the input"):
        read(tmp_path / "*.npy")
    with pytest.raises(DataError, match=r"/a.offsets.npy: its array .*/a.npy is not among the input"):
        read(tmp_path / "a.offsets.npy")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("5 6")
    with pytest.raises(DataError, match=r"'.txt' is not known\); they are read from files named .jsonl"):
        read(tmp_path / "a.txt")


def test_compressed_lines_are_read_and_compressed_arrays_refused(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"[5, 6]\n[7]\n"))
    assert read(tmp_path / "a.jsonl.gz")[0] == [[[5, 6]], [[7]]]
    (tmp_path / "a.npy.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"a.npy.gz: of lists of ids only JSON Lines are read compressed"):
        read(tmp_path / "a.npy.gz")


def test_arrays_are_known_by_a_name_in_capitals_as_well(tmp_path):
    write_arrays(tmp_path, [5, 6, 7], [0, 2, 3]).rename(tmp_path / "A.NPY")
    (tmp_path / "a.offsets.npy").rename(tmp_path / "A.offsets.npy")
    assert read(tmp_path / "A.NPY")[0] == [[[5, 6]], [[7]]]


def test_pairs_in_arrays_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"a.npy: an array has one list per document, and second_field='b' asks for"):
        read(write_lists(tmp_path, "npy", LISTS), second_field="b")


def test_long_lists_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.extract.ids.MAX_DOCUMENT_IDS", 10)
    problems = Problems()
    assert len(read(write_lists(tmp_path, "npy", LISTS), problems=problems)[0]) == 4
    assert problems.examples["oversized_documents"][0].endswith("list 3 has more than 10 ids")
