import bz2
import gzip
import json
import lzma
import os
import shutil
import subprocess
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.faulty_server import serving_files
from unit.data_prep.conftest import read_chunks

from data_prep.execution import records
from data_prep.execution.records import Problems
from data_prep.extract import columns, inputs
from data_prep.extract import text as text_module
from data_prep.extract.opening import find_paths
from megabert.foundation.errors import ConfigError, DataError

TEXTS = [f"Document {i} \u00e9 says something of its own." for i in range(50)]


def zst(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": partial(lzma.compress, preset=0), "zst": zst}


def read_all(path, problems=None, **options):
    return [text.strip() for text in read_chunks(path, problems, **options)[0]]


def jsonl(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


@pytest.mark.parametrize("compression", COMPRESS)
def test_compressed_files_hold_what_the_plain_one_holds(tmp_path, compression):
    data = "\n\n".join(TEXTS).encode()
    half = len(data) // 2
    # Several members end to end, as bgzip, pbzip2 and `cat` make them.
    packed = COMPRESS[compression](data[:half]) + COMPRESS[compression](data[half:])
    (tmp_path / f"a.txt.{compression}").write_bytes(packed)
    (tmp_path / f"b.jsonl.{compression}").write_bytes(COMPRESS[compression](jsonl(TEXTS)))
    assert read_all(tmp_path / f"a.txt.{compression}") == TEXTS
    assert read_all(tmp_path / f"b.jsonl.{compression}") == TEXTS


@pytest.mark.parametrize("compression", ["gz", "xz"])
def test_zeros_between_and_behind_members_are_padding(tmp_path, compression):
    packed = [COMPRESS[compression](part.encode()) + bytes(512) for part in ("\n\n".join(TEXTS[:9]), "\n\n" + TEXTS[9])]
    (tmp_path / f"a.txt.{compression}").write_bytes(b"".join(packed))
    assert read_all(tmp_path / f"a.txt.{compression}") == TEXTS[:10]


@pytest.mark.parametrize("compression", COMPRESS)
def test_cut_compressed_file_is_reported_and_its_whole_documents_kept(tmp_path, compression):
    texts = [f"\u00e9{os.urandom(600).hex()} number {i}." for i in range(1800)]
    packed = COMPRESS[compression]("\n\n".join(texts).encode())
    path = tmp_path / f"a.txt.{compression}"
    path.write_bytes(packed[: len(packed) * 2 // 3])
    with pytest.raises(DataError, match=f"{path.name}: its {compression} data .*--max-bad-share"):
        read_all(path)
    problems = Problems(is_strict=False)
    found = read_all(path, problems)
    assert 100 < len(found) < 1800
    assert found == texts[: len(found)]
    assert problems.counts == {"cut_files": 1}
    assert str(path) in problems.examples["cut_files"][0]
    packed = COMPRESS[compression](jsonl(texts))
    path.with_name(f"b.jsonl.{compression}").write_bytes(packed[: len(packed) // 2])
    assert read_all(tmp_path / f"b.jsonl.{compression}", Problems(is_strict=False))[-1] in texts


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream", "dictionary"])
def test_columns_are_read_in_parts(tmp_path, kind):
    column = pa.array([*TEXTS, None])
    table = pa.table({"body": column.dictionary_encode() if kind == "dictionary" else column, "id": range(51)})
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    write_table(table, path, pa.ipc.new_stream if kind == "arrow stream" else pa.ipc.new_file, rows=7)
    assert read_all(path, chunk_bytes=1, field="body") == [*TEXTS, ""]
    assert len(read_chunks(path, chunk_bytes=1, field="body")[1]) <= 8
    with pytest.raises(DataError, match=r"no column 'text' \(columns: body, id\)"):
        read_all(path)
    with pytest.raises(DataError, match="holds int64, not text"):
        read_all(path, field="id")


LAYOUTS = [pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]
LAYOUTS.append(pa.dictionary(pa.int8(), pa.string()))
RUNS = pa.run_end_encoded(pa.int32(), pa.string())  # which Parquet does not have


def write_table(table, path, new=pa.ipc.new_file, rows=None):
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
    else:
        with new(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


@pytest.mark.parametrize(
    ("layout", "suffix"),
    [*((layout, suffix) for layout in LAYOUTS for suffix in ("parquet", "arrow")), (RUNS, "arrow")],
    ids=str,
)
def test_every_layout_of_strings_is_read(tmp_path, layout, suffix):
    column = pa.array([*TEXTS[:9], TEXTS[8], None, "\u00e9" * 9])
    table = pa.table({"text": pc.run_end_encode(column) if layout == RUNS else column.cast(layout)})
    assert read_all(write_table(table, tmp_path / f"a.{suffix}")) == [*TEXTS[:9], TEXTS[8], "", "\u00e9" * 9]


def test_bytes_that_are_no_text_and_no_parquet_are_named(tmp_path):
    pq.write_table(pa.table({"text": [b"one", b"\xff\xfe"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"row 1 of part 0 of the column 'text' holds binary data that are no UTF-8"):
        read_all(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as parquet"):
        read_all(tmp_path / "a.parquet")


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the program zstd")
def test_a_window_above_the_limit_is_told_with_a_remedy_that_works(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS))
    # A stream of unknown size has the window that was asked for, however short it is.
    packed = subprocess.run(["zstd", "-c", "--long=31"], input=(tmp_path / "a.txt").read_bytes(), capture_output=True)
    path = tmp_path / "b.txt.zst"
    path.write_bytes(packed.stdout)
    with pytest.raises(DataError, match="a window above 128 MiB") as refused:
        read_all(path, problems=Problems(is_strict=False))
    remedy = str(refused.value).partition("Unpack it first: ")[2]
    subprocess.run(remedy.split(), check=True, capture_output=True)
    assert read_all(tmp_path / "b.txt") == read_all(tmp_path / "a.txt")


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the program zstd")
def test_a_dictionary_of_zstd_is_told_with_a_remedy_that_works(tmp_path):
    samples = [tmp_path / f"{number}" for number in range(60)]
    for sample in samples:
        sample.write_text(f"Document {sample.name}: it rained on {sample.name} days and nights. " * 9)
    subprocess.run(["zstd", "-q", "--train", *samples, "-o", tmp_path / "words", "--maxdict=2000"], check=True)
    path = tmp_path / "b.txt.zst"
    subprocess.run(["zstd", "-q", "-D", tmp_path / "words", tmp_path / "7", "-o", path], check=True)
    with pytest.raises(DataError, match=r"with a dictionary \(`zstd -D`\)") as refused:
        read_all(path, problems=Problems(is_strict=False))
    remedy = str(refused.value).partition("Unpack it first: ")[2].replace("DICTIONARY", str(tmp_path / "words"))
    subprocess.run(remedy.split(), check=True, capture_output=True)
    assert (tmp_path / "b.txt").read_text() == (tmp_path / "7").read_text()


@pytest.mark.parametrize("options", [["-1"], ["-19"], ["--long=27"], ["--no-check"], ["-T2"], ["--fast=5"]])
@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the program zstd")
def test_every_form_of_zstd_within_the_window_is_read(tmp_path, options):
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS))
    text = (tmp_path / "a.txt").read_bytes()
    frames = [
        subprocess.run(["zstd", "-cq", *options], input=part, capture_output=True).stdout
        for part in (text[:100], b"", text[100:])
    ]
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    (tmp_path / "b.txt.zst").write_bytes(skipped + skipped.join(frames))
    assert read_all(tmp_path / "b.txt.zst") == read_all(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("Chapter\n\nIt was\na day\nof rain.\n\nIt went on.\n", "Chapter\nIt was a day of rain.\nIt went on."),
        (
            "\u305f\u3079\n\u307e\u3057\u305f\u3002\nThe end\nis near.\n\n\ud55c\uad6d\n\ub9d0",
            "\u305f\u3079\u307e\u3057\u305f\u3002 The end is near.\n\ud55c\uad6d \ub9d0",
        ),
    ],
    ids=["with spaces", "without spaces"],
)
def test_book_is_one_document_and_its_wrapped_lines_are_joined(tmp_path, text, document):
    (tmp_path / "b.txt").write_text(text, "utf-8")
    assert read_all(tmp_path / "*.txt", format="book") == [document]


def test_urls_are_read_through_fsspec(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(jsonl(TEXTS[:20])))
    (tmp_path / "b.jsonl").write_bytes(jsonl(TEXTS[20:]))
    assert read_all(f"file://{tmp_path}/*") == TEXTS
    assert read_all(f"file://{tmp_path}/b.jsonl") == TEXTS[20:]
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "c.parquet")
    assert read_all(f"file://{tmp_path}/c.parquet") == TEXTS
    with pytest.raises(DataError, match="no such file"):
        read_all(f"file://{tmp_path}/none.txt")


@pytest.mark.parametrize("protocol", ["", "file://"])
def test_a_name_that_exists_is_no_pattern(tmp_path, protocol):
    for name in ("a1.txt", "a[1].txt", "b[1].txt"):
        (tmp_path / name).write_text(name)
    for name in ("a[1].txt", "b[1].txt"):
        assert read_all(f"{protocol}{tmp_path}/{name}") == [name]
    assert read_all(f"{protocol}{tmp_path}/a[0-9].txt") == ["a1.txt"]


def test_format_of_a_signed_address_is_that_of_its_name(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(jsonl(TEXTS)))
    for name in ("a.json", "a.npy"):
        (tmp_path / name).write_text("[5]")
    with serving_files(tmp_path) as port:
        address = f"http://127.0.0.1:{port}"
        assert read_all(f"{address}/a.jsonl.gz?sig=abc") == TEXTS
        assert read_all(f"{address}/a.jsonl.gz?sig=abc", format="jsonl") == TEXTS
        for name, kind, says in (("a.json", "auto", "jq -c '.*' a.json > a.json."), ("a.npy", "ids", "local files")):
            with pytest.raises(DataError, match=says) as refused:
                read_all(f"{address}/{name}?sig=abc", format=kind)
            assert "abc" not in str(refused.value)


def test_unknown_protocol_is_named(tmp_path):
    with pytest.raises(ConfigError, match="a URL that fsspec knows"):
        read_all("nothing://bucket/key.txt")


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_oversized_document_is_left_out_without_being_held(tmp_path, monkeypatch, compression):
    monkeypatch.setattr(text_module, "MAX_DOCUMENT_BYTES", 3 << 20)
    monkeypatch.setattr(inputs, "MIN_CHUNK_BYTES", 1)
    long = json.dumps({"text": "x" * (8 << 20)})
    data = jsonl(TEXTS[:5]) + long.encode() + b"\n" + jsonl(TEXTS[5:])
    (tmp_path / f"a.jsonl{compression}").write_bytes(gzip.compress(data, 1) if compression else data)
    problems = Problems()
    assert read_all(tmp_path / f"a.jsonl{compression}", problems, chunk_bytes=1 << 20) == TEXTS
    assert problems.counts == {"oversized_documents": 1}
    assert f"the document at byte {len(jsonl(TEXTS[:5]))}" in problems.examples["oversized_documents"][0]


def test_unreadable_documents_can_be_dropped_and_counted(tmp_path):
    lines = jsonl(TEXTS).splitlines(keepends=True)
    lines[3], lines[7], lines[9] = b'{"text": "caf\xe9"}\n', b"{broken\n", b'{"other": 1}\n'
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    problems = Problems(is_strict=False)
    assert read_all(tmp_path / "a.jsonl", problems) == [t for i, t in enumerate(TEXTS) if i not in (3, 7, 9)]
    assert problems.counts == {"undecodable_documents": 1, "bad_lines": 2}
    assert "line 8 is no JSON" in problems.examples["bad_lines"][0]


@pytest.mark.parametrize("pattern", ["closed/*.txt", "*/*.txt", "**/*.txt", "*/closed/a.txt", "closed/a.txt"])
def test_folder_without_permission_is_named(tmp_path, pattern):
    """Root may read everything, so a child process gives up its rights first."""
    for folder in ("closed", "open/closed", "lost+found"):
        (tmp_path / folder).mkdir(mode=0o000, parents=True)
    (tmp_path / "open" / "a.txt").write_text("a")
    tmp_path.chmod(0o755)
    child = os.fork()
    if child == 0:
        found = 2
        try:
            os.chdir(tmp_path)
            if os.geteuid() == 0:
                os.setuid(65534)
            found = 3 - len(find_paths("open/*.txt"))
            find_paths(pattern)
        except DataError as error:
            found = 0 if "closed: this folder may not be read" in str(error) and "chmod u+rx" in str(error) else 1
        finally:
            os._exit(found)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_texts_of_a_table_above_the_limit_are_left_out(tmp_path, monkeypatch):
    for module in (columns, records):
        monkeypatch.setattr(module, "MAX_DOCUMENT_BYTES", 1 << 20)
    table = pa.table({"text": [*TEXTS[:5], "x" * (2 << 20), *TEXTS[5:9]]})
    encoded = pa.table({"text": table["text"].dictionary_encode()})
    huge = pa.table({"text": ["x" * (8 << 20)]})  # is not even decompressed
    problems = Problems()
    for name, own, texts in (("a.parquet", table, TEXTS[:9]), ("b.arrow", encoded, TEXTS[:9]), ("c.parquet", huge, [])):
        assert read_all(write_table(own, tmp_path / name), problems) == texts
    assert problems.counts == {"oversized_documents": 3}


def test_line_numbers_of_bad_lines_are_counted_for_those_that_are_shown(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(text_module, "line_number", lambda chunk, position: asked.append(position) or 1)
    (tmp_path / "a.jsonl").write_bytes(b"no JSON\n" * 1000)
    problems = Problems(is_strict=False)
    assert read_all(tmp_path / "a.jsonl", problems) == []
    assert problems.counts == {"bad_lines": 1000}
    assert len(asked) == len(problems.examples["bad_lines"]) == 3


def test_text_before_a_wrong_character_is_kept_and_the_rest_is_counted_as_lost(tmp_path):
    good, rest = "".join(jsonl(TEXTS[:20]).decode()).encode("utf-16-le"), jsonl(TEXTS[20:]).decode().encode("utf-16-le")
    (tmp_path / "a.jsonl").write_bytes(good + b"\x00\xdc" + rest)
    problems = Problems(is_strict=False)
    assert read_all(tmp_path / "a.jsonl", problems, encoding="utf-16-le") == TEXTS[:20]
    assert problems.counts == {"damaged_files": 1}
    assert problems.lost_bytes == 2 + len(rest)
