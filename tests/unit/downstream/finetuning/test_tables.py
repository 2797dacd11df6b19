"""Tables in all formats, and what is wrong with them said by line."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megabert.downstream.finetuning.tables import read_table
from megabert.downstream.finetuning.tasks import Task
from megabert.foundation.errors import DataError

ROWS = [{"text": "a 'b' \"c\"", "label": 1}, {"text": "\ud55c\uad6d\uc5b4, x", "label": 0}]


def write(path, suffix):
    path = path / f"t{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif suffix == ".tsv":
        path.write_text("x\ttext\tlabel\n" + "".join(f"0\t{r['text']}\t{r['label']}\n" for r in ROWS))
    else:
        quoted = ['"{}"'.format(r["text"].replace('"', '""')) + f",{r['label']}\n" for r in ROWS]
        path.write_text("text,label\n" + "".join(quoted))
    return path


def parquet_of(names):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.array(["a"])] * len(names), names=names), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_columns(tmp_path, suffix):
    table = read_table(write(tmp_path, suffix), ["text", "label"])
    assert [row.text("text") for row in table] == [row["text"] for row in ROWS]
    assert [row.text("label") for row in table] == ["1", "0"]


NO_HEADER = Task("t", "", header=("source", "label", "star", "text"))


@pytest.mark.parametrize(
    ("name", "content", "task", "rows"),
    [
        ("t.tsv", "gj04\t1\t\tThe cat sat.\n", NO_HEADER, [("1", "The cat sat.")]),
        ("t.csv", "text,label\na,yes\nb,yes \nc, yes\n", None, [("yes", "a"), ("yes", "b"), ("yes", "c")]),
        ("t.tsv", 'text\tlabel\n"open\t1\nclosed"\t0\n', None, [("1", '"open'), ("0", 'closed"')]),
        ("t.tsv", "text\tlabel\n\t1\n", None, [("1", "")]),
        ("t.csv", "\ufefftext,label\r\na b,1\r\n", None, [("1", "a b")]),
        ("t.csv", "text,label\ra b,1\r", None, [("1", "a b")]),
        ("t.csv", f"text,label\n{'a' * 200_000},1\n", None, [("1", "a" * 200_000)]),
    ],
    ids=["no header", "spaces around labels", "quotes in TSV", "no text", "a mark and CRLF", "CR", "long"],
)
def test_labels_and_texts_are_read_as_they_are_meant(tmp_path, name, content, task, rows):
    (tmp_path / name).write_bytes(content.encode())
    table = read_table(tmp_path / name, ["label", "text"], task or Task("t", ""))
    assert [(row.label("label"), row.text("text")) for row in table] == rows


@pytest.mark.parametrize(
    ("name", "content", "phrases"),
    [
        ("t.tsv", "text\tlabel\na\t1\nb\n", ["t.tsv:3", "1 columns, the header has 2"]),
        ("t.tsv", "sentence\tlabel\na\t1\n", ["no column 'text'", "'sentence', 'label'", "--text-column"]),
        ("t.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', ["t.jsonl:2", "no column 'label'"]),
        ("t.jsonl", '{"text": "a", "label": 1}\n{"text": \n', ["t.jsonl:2", "Invalid JSON"]),
        ("t.jsonl", "[1]\n", ["t.jsonl:1", "Input should be an object"]),
        ("t.csv", 'text,label\n"a"b,1\n', ["t.csv:2", "is not CSV"]),
        ("t.parquet", "PAR", ["not Parquet"]),
        ("t.parquet", parquet_of(["text", "text", "label"]), ["t.parquet: column 'text' is there twice"]),
        ("t.tsv", b"text\tlabel\n\xff\t1\n", ["not UTF-8"]),
        ("t.csv", "text,label,label\na,1,2\n", ["t.csv: column 'label' is there twice"]),
        ("t.xlsx", "x", ["unknown kind of table", ".parquet"]),
    ],
)
def test_bad_file_is_named(tmp_path, name, content, phrases):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        read_table(tmp_path / name, ["text", "label"])
    assert all(phrase in str(caught.value) for phrase in phrases), caught.value


@pytest.mark.parametrize(
    ("value", "phrase"),
    [("null", "is empty"), ("NaN", "is empty"), ('" "', "is empty"), ('["a"]', "holds a list"), ("{}", "holds a dict")],
)
def test_value_that_is_no_label_is_named_by_line(tmp_path, value, phrase):
    (tmp_path / "t.jsonl").write_text(f'{{"text": "a", "label": {value}}}\n')
    with pytest.raises(DataError, match=rf"t.jsonl:1: column 'label' {phrase}"):
        read_table(tmp_path / "t.jsonl", ["label"])[0].label("label")


def test_broken_rows_are_counted_where_a_task_says_so(tmp_path, caplog):
    (tmp_path / "t.tsv").write_text("text\tlabel\na\t1\nb\nc\t0\n")
    table = read_table(tmp_path / "t.tsv", ["text"], Task("t", "", skips_broken_rows=True))
    assert len(table) == 2
    assert "1 rows with a wrong number of columns were left out" in caplog.text


@pytest.mark.parametrize(("header", "identity"), [("id", "7"), ("index", "7"), ("other", None)])
def test_row_knows_its_line_and_its_id(tmp_path, header, identity):
    (tmp_path / "t.tsv").write_text(f"{header}\ttext\n\n7\ta\n")
    (row,) = read_table(tmp_path / "t.tsv", ["text"])
    assert row.origin() == {"where": f"{tmp_path / 't.tsv'}:3", "line": 3, "identity": identity}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_value_of_millions_of_characters_is_refused(suffix, tmp_path):
    text = "word " * 300_000
    path = tmp_path / f"a{suffix}"
    path.write_text(json.dumps({"text": text}) if suffix == ".jsonl" else f"text\n{text}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"1,500,000 characters|field limit"):
        read_table(path, ["text"])[0].text("text")
