import bz2
import gzip
import lzma
import tarfile
from typing import get_args, get_type_hints

import pytest

from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.extract.first_look import READINGS, SIGNATURES, count_wrapped, describe_readings, warn_of_likely_mistakes
from data_prep.extract.inputs import find_files
from megabert.foundation.errors import DataError

WRAPPED = "The ship had left the harbour before the dawn and\nnobody on the quay had slept.\n\n" * 60
UNWRAPPED = "The ship had left the harbour before the dawn and nobody on the quay had slept.\nIt rained.\n\n" * 60
POEM = "The ship had left the harbour before dawn,\nAnd nobody on the quay had slept that night,\n" * 60
KOREAN = "\ubc30\ub294 \uc0c8\ubcbd\uc774 \ub418\uae30 \uc804\uc5d0 " * 4 + "\n"
BEGINS = {
    "RTF": b"{\\rtf1",
    "bzip2": bz2.compress(b"a"),
    "Zstandard": b"\x28\xb5\x2f\xfd",
    "an archive of the web": b"WARC/1.0\r\n",
    "an archive of cpio": b"070701" + b"0" * 104,
}
"""What a file begins with, of kinds that are told by more than some bytes."""
PROSE = ["{ a, b } is a set.", '"Yes": he said', "[1] Smith", "<doctor>", "WAR and peace", "07070 123456 is the number"]
PROSE += ["070701 was a Sunday", "BZhang is a common name", "Rar! said the lion", "WARC/1.0 is a form", "FEA1"]
PROSE += ["PAR1 is a gene", "SQLite format 3 is old", "!<arch> is a mark"]


def files_of(path, **options):
    return find_files((SourceConfig(input=str(path), **options),))


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
@pytest.mark.parametrize("signature", [BEGINS.get(kind, begin.pattern) for begin, kind, _ in SIGNATURES])
def test_files_that_are_not_text_are_told_by_their_first_bytes(tmp_path, signature, suffix):
    content = signature + bytes(range(256))
    (tmp_path / f"a{suffix}").write_bytes(gzip.compress(content) if suffix == ".txt.gz" else content)
    with pytest.raises(DataError, match=rf"a{suffix}: is .*, not text\. [A-Z].*\.$"):
        files_of(tmp_path / f"a{suffix}", format="text")


@pytest.mark.parametrize(
    ("begin", "says"),
    [
        ('{"id": "7", "url": "x", "title": "A", "text": "', r"JSON Lines, .*--format jsonl"),
        ('\ufeff\n{ "a \\" b" : 1}\n', r"JSON Lines, .*--format jsonl"),
        ('[\n  {"text": "One."},\n', r"JSON, .*jq -c"),
        ('<mediawiki xml:lang="de">\n<siteinfo>', r"a dump of a wiki, .*--format wikipedia"),
        ('<?xml version="1.0"?>\n<mediawiki>', r"a dump of a wiki, .*--format wikipedia"),
        ('<doc id="12" url="x" title="A">\nA\n', r"what wikiextractor writes, .*--json"),
        ('<?xml version="1.0"?>\n<TEI>', r"XML, .*pandoc"),
        ("<DOC>\n<DOCNO> AP-1 </DOCNO>", r"XML, .*pandoc"),
        ("<!-- saved -->\n<!DOCTYPE html>", r"HTML, .*pandoc"),
        ("<head><title>404</title></head>", r"HTML, .*pandoc"),
    ],
)
@pytest.mark.parametrize("format_", ["text", "book"])
def test_text_that_begins_as_another_format_is_refused(tmp_path, begin, says, format_):
    (tmp_path / "wiki_00").write_text(begin + "One two three. " * 200, "utf-8")
    with pytest.raises(DataError, match=f"wiki_00: is {says.replace(', ', f', not {format_}. ', 1)}"):
        files_of(tmp_path / "wiki_00", format=format_)


@pytest.mark.parametrize("begin", PROSE)
def test_prose_is_text_though_it_begins_as_other_files(tmp_path, begin):
    (tmp_path / "a.txt").write_text(begin)
    assert files_of(tmp_path / "a.txt")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
LINES = b'{"input_ids": [5]}\n' * 9


@pytest.mark.parametrize(
    ("name", "content", "options", "says"),
    [
        ("a.parquet", POINTER, {}, "a pointer of Git LFS to a file, not parquet. Fetch the file itself"),
        ("a.parquet", LINES, {}, "JSON Lines, not parquet. Say --format jsonl"),
        ("a.parquet", LINES, {"format": "ids"}, "JSON Lines, not parquet. Give it the suffix"),
        ("a.parquet", b"ARROW1\0\0", {}, "Arrow, not parquet. Say --format arrow"),
        ("a.arrow", b"PAR1\x15\x04", {}, "Parquet, not arrow. Say --format parquet"),
        ("a.feather", b"FEA1\0\0\0\0", {}, "Feather 1, not arrow. Write it as Parquet"),
        ("a.parquet.gz", gzip.compress(b"PAR1"), {}, "gzip, not parquet. Unpack it"),
        ("a.parquet.gz", gzip.compress(b"PAR1"), {"format": "parquet"}, "gzip, not parquet. Unpack it"),
        ("a.npy", POINTER, {"format": "ids"}, "a pointer of Git LFS to a file, not npy. Fetch the file itself"),
        ("a.npy", b"PAR1\x15\x04", {"format": "ids"}, "Parquet, not npy. Give it the suffix"),
    ],
)
def test_files_of_columns_and_arrays_are_told_by_their_first_bytes(tmp_path, name, content, options, says):
    for path in (name, "a.offsets.npy"):
        (tmp_path / path).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: is {says}"):
        files_of(tmp_path / name, **options)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("pack", [bytes, lzma.compress, gzip.compress])
def test_tar_archives_are_told_by_their_first_header_whatever_packs_them(tmp_path, form, pack):
    suffix = {bytes: "", lzma.compress: ".xz", gzip.compress: ".gz"}[pack]
    (tmp_path / "a.txt").write_text(UNWRAPPED)
    with tarfile.open(tmp_path / "plain", "w", format=form) as archive:
        archive.add(tmp_path / "a.txt", "0001-\u00e9.txt")
    packed = tmp_path / f"urlsf_subset00{suffix}"
    packed.write_bytes(pack((tmp_path / "plain").read_bytes()))
    with pytest.raises(DataError, match=r"is a tar archive, not text\. Unpack it first"):
        files_of(packed, format="text")


@pytest.mark.parametrize("name", ["a.txt.gz", "a.bz2", "a.jsonl.xz", "a.zst"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"Plain text.\n", "not compressed so: it begins with 'Plain te'"),
        (b"\x04\x22\x4d\x18\x64\x40\xa7\x00", "it is LZ4"),
        (b"%PDF-1.7", "it is PDF"),
    ],
)
def test_a_name_of_another_compression_is_not_called_damage(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"its name says {name.split('.')[-1]}, but .*{says}"):
        files_of(tmp_path / name)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_wide_encodings_are_named(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes(UNWRAPPED.encode(encoding))
    with pytest.raises(DataError, match=f"--encoding {encoding}"):
        files_of(tmp_path / "a.txt")
    assert files_of(tmp_path / "a.txt", encoding=encoding)


def test_wrapped_lines_are_warned_of_once_a_source(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(WRAPPED)
    (tmp_path / "b.txt").write_text(WRAPPED)
    warn_of_likely_mistakes(files_of(tmp_path / "*.txt"))
    (line,) = capsys.readouterr().err.splitlines()
    assert "a.txt (and 1 more files)" in line
    assert "--format book" in line
    warn_of_likely_mistakes(files_of(tmp_path / "*.txt", format="book"))
    assert not capsys.readouterr().err


def test_files_are_gone_through_once_however_many_sources_there_are(tmp_path, capsys):
    class Counted(list):
        times = 0

        def __iter__(self):
            self.times += 1
            return super().__iter__()

    paths = [tmp_path / f"{number}.txt" for number in range(5)]
    for path in paths:
        path.write_text(WRAPPED)
    files = Counted(find_files(tuple(SourceConfig(input=str(path)) for path in paths)))
    warn_of_likely_mistakes(files)
    assert files.times == 1
    assert len(capsys.readouterr().err.splitlines()) == len(paths)


@pytest.mark.parametrize("text", [UNWRAPPED, POEM, "a list\nof words\n" * 200, ""], ids=range(4))
def test_whole_lines_are_not_taken_for_wrapped(text):
    inside, ends = count_wrapped(text)
    assert inside <= ends / 2


def test_wrapped_lines_without_case_are_told():
    assert count_wrapped(KOREAN * 10) == (9, 9)


def test_every_format_of_text_has_its_sentence():
    assert {*READINGS} == {*get_args(get_type_hints(SourceConfig)["format"])} - {"auto", "ids"}


def test_readings_name_format_encoding_field_borders_and_language(tmp_path):
    for name in ("a.jsonl", "b.jsonl", "c.txt", "d.txt"):
        (tmp_path / name).write_text('{"body": "One."}\n' if name.endswith("l") else "One.\n")
    sources = (
        SourceConfig(input=f"{tmp_path}/*.jsonl", field="body"),
        SourceConfig(input=f"{tmp_path}/c.txt", encoding="cp1252", language="de"),
        SourceConfig(input=f"{tmp_path}/d.txt", format="book", language="auto"),
    )
    lines = describe_readings(BuildConfig(sources=sources), find_files(sources))
    assert [line.replace(str(tmp_path), "T") for line in sorted(lines)] == [
        "T/a.jsonl and 1 more: read as jsonl in utf-8: a line is a document, its field 'body' the text; sentences are "
        "cut as in en (--language)",
        "T/c.txt: read as text in cp1252: a line is a paragraph, a blank line ends a document; sentences are cut as in "
        "de (--language)",
        "T/d.txt: read as book in utf-8: a file is a document, a blank line ends a paragraph; sentences are cut by the "
        "language that each document is found to have",
    ]
