import json
import os
import re
from dataclasses import replace

import pytest
from unit.data_prep.conftest import read_chunks

from data_prep.clean.cleaner import paragraphs_of
from data_prep.config.build import SourceConfig
from data_prep.execution.records import Problems
from data_prep.extract import inputs, opening
from data_prep.extract import text as text_module
from data_prep.extract.inputs import find_files, plan_chunks
from data_prep.steps.document_reader import READERS
from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import compose

GREETINGS = [f"\uc548\ub155 {i}." for i in range(30)]


def read_all(path, chunk_bytes=1 << 30, **options):
    return [paragraphs_of(compose(text)) for text in read_chunks(path, chunk_bytes=chunk_bytes, **options)[0]]


@pytest.mark.parametrize(
    ("contents", "documents"),
    [
        (
            [b"\n\n One line. \nTwo.\n \t\nSecond document.\n\n\n\nThird.\n\n"],
            [["One line.", "Two."], ["Second document."], ["Third."]],
        ),
        ([b"First.", b"Second."], [["First."], ["Second."]]),
        ([b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\nThree.\rFour.\r"], [["One.", "Two."], ["Three.", "Four."]]),
        (["e\u0301a".encode()], [["\u00e9a"]]),
    ],
    ids=["blank lines", "two files", "byte order mark and carriage returns", "composed"],
)
def test_plain_text_is_parted_into_documents(tmp_path, contents, documents):
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.txt").write_bytes(content)
    assert read_all(tmp_path / "*.txt") == documents


def test_position_of_a_document_is_its_byte(tmp_path):
    path, documents = tmp_path / "a.txt", ["\u00e9t\u00e9.", "Zwei.", "\u6f22\u5b57", "End."]
    path.write_text("\n \u3000\n".join(documents), encoding="utf-8")
    (chunk,) = plan_chunks(find_files((SourceConfig(input=str(path)),)), 1 << 30)
    found = [(int(str(position)), text) for position, text in READERS["text"](chunk, Problems())]
    assert found == [(path.read_bytes().index(text.encode()), text) for text in documents]


def test_json_lines_field_is_the_document(tmp_path):
    lines = [{"body": "One.\n\nTwo."}, {"body": "", "x": 1}, {"body": "Three."}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read_all(tmp_path / "a.jsonl", field="body") == [["One.", "Two."], [], ["Three."]]


@pytest.mark.parametrize(("suffix", "border"), [("jsonl", "\n"), ("txt", "\n\n"), ("txt", "\n  \n")])
@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1000])
def test_cutting_into_chunks_loses_nothing(tmp_path, monkeypatch, suffix, border, chunk_bytes):
    monkeypatch.setattr(inputs, "MIN_CHUNK_BYTES", 1)
    monkeypatch.setattr(text_module, "SCAN_BYTES", 5)
    texts = [f"Document {i} \u00e9{'x' * (i * 7 % 90)}." for i in range(40)]
    written = [json.dumps({"text": text}, ensure_ascii=False) if suffix == "jsonl" else text for text in texts]
    path = tmp_path / f"a.{suffix}"
    path.write_text(border.join(written), encoding="utf-8")
    assert read_all(path, chunk_bytes) == [[text] for text in texts]


def test_chunks_in_which_no_document_starts_do_not_search_the_rest_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "MIN_CHUNK_BYTES", 1)
    monkeypatch.setattr(text_module, "SCAN_BYTES", 500)
    (tmp_path / "a.txt").write_text(text := "A line without a blank line after it.\n" * 1000)
    searched, next_document = [], text_module._next_document

    def count(stream, *arguments):
        start = next_document(stream, *arguments)
        searched.append(stream.tell() - arguments[1])
        return start

    monkeypatch.setattr(text_module, "_next_document", count)
    texts, chunks = read_chunks(tmp_path / "a.txt", chunk_bytes=1000)
    assert (texts, len(chunks)) == ([text], 38)
    assert sum(searched) < 4 * len(text)


@pytest.mark.parametrize("encoding", ["utf-16", "cp949", "utf-8", "gb18030"])
def test_encoding_is_that_of_the_source(tmp_path, monkeypatch, encoding):
    monkeypatch.setattr(inputs, "MIN_CHUNK_BYTES", 1)
    (tmp_path / "a.txt").write_bytes("\n\n".join(GREETINGS).encode(encoding))
    assert read_all(tmp_path / "a.txt", 50, encoding=encoding) == [[text] for text in GREETINGS]


@pytest.mark.parametrize("block_bytes", [1, 7, 64])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-7", "iso2022_kr"])
def test_files_that_cannot_be_cut_are_read_in_blocks(tmp_path, monkeypatch, encoding, block_bytes):
    monkeypatch.setattr(opening, "BLOCK_BYTES", block_bytes)
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in GREETINGS]
    (tmp_path / "a.jsonl").write_bytes("\n".join(lines).encode(encoding))
    assert read_all(tmp_path / "a.jsonl", encoding=encoding) == [[text] for text in GREETINGS]


@pytest.mark.parametrize("block_bytes", [3, 1 << 20])
def test_wrong_places_of_such_files_are_named(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(opening, "BLOCK_BYTES", block_bytes)
    good = '{"text": "\u00e9"}\n{"text": "b"}\n'.encode("utf-16-le")
    (tmp_path / "a.jsonl").write_bytes(good + b"\x00\xdc")
    with pytest.raises(DataError, match=rf"a\.jsonl: not utf-16-le at byte {len(good)} \(illegal encoding"):
        read_all(tmp_path / "a.jsonl", encoding="utf-16-le")
    (tmp_path / "a.jsonl").write_bytes(good + "{broken".encode("utf-16-le"))
    with pytest.raises(DataError, match="line 3 is no JSON"):
        read_all(tmp_path / "a.jsonl", encoding="utf-16-le")


@pytest.mark.parametrize("chunk_bytes", [20, 1 << 20])
def test_wrong_bytes_are_named_with_offset_and_line(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr(inputs, "MIN_CHUNK_BYTES", 1)
    good = b"A good line.\n\n" * 10
    (tmp_path / "a.txt").write_bytes(good + b"caf\xe9 noir\n")
    with pytest.raises(DataError, match=rf"a\.txt: not utf-8 at byte {len(good) + 3} \(line 21; bytes e9 20") as error:
        read_all(tmp_path / "a.txt", chunk_bytes)
    assert "--encoding cp1252" in str(error.value)


def test_half_a_character_by_an_escape_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo \\uD800.\n\nThree.\n")
    message = r"not unicode_escape at byte 10 \(line 3; bytes 5c 75 44 38: half a surrogate pair\)"
    with pytest.raises(DataError, match=message):
        read_all(tmp_path / "a.txt", encoding="unicode_escape")
    texts, _ = read_chunks(tmp_path / "a.txt", Problems(is_strict=False), encoding="unicode_escape")
    assert [text.strip() for text in texts] == ["One.", "Three."]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "line 3 is no JSON"),
        ("[1]", "line 3 holds a list"),
        ('{"body": "x"}', r"line 3 has no text under the key 'text' \(keys: body\)"),
        ('{"text": 3}', "line 3 has no text under the key"),
        (r'{"text": "\ud83d!"}', r"line 3 has half a character \(\\ud83d without"),
        (r'{"\ud83d": "x"}', r"line 3 has no text under the key 'text' \(keys: \\ud83d\)"),
        ("[" * 100_000, "line 3 is no JSON"),
    ],
)
def test_bad_json_lines_are_named(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        read_all(tmp_path / "a.jsonl")
    read_chunks(tmp_path / "a.jsonl", problems := Problems(is_strict=False))
    assert re.search(message, problems.examples["bad_lines"][0])


@pytest.mark.parametrize(
    "line",
    [
        r'{"text": "\ud83d\ude00 \u0007\/\b\f\r\t\"", "n": [1, -0.5e300, 1e999, NaN, -Infinity, true, null]}',
        '{"text": "first", "text": "last \u2028 \U0001f600", "": {}}',
        ' \t{"text" : "' + "\u00e9" * 100 + '" , "n": 123456789012345678901234567890}\t ',
    ],
)
def test_lines_are_read_as_by_pythons_parser(tmp_path, line):
    assert text_module._stored_text(line.encode(), "text") == json.loads(line)["text"]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("*.txt", {}, "no such file"),
        ("", {}, r"is a folder.*/\*\.txt"),
        ("a.xyz", {}, "--format text"),
        ("a.xyz", {"format": "text", "encoding": "utf-9"}, "unknown encoding 'utf-9'"),
        ("pipe", {}, "pipe: cannot be read .it is a pipe"),
        ("*e", {}, "pipe: cannot be read .it is a pipe"),
        ("*.link", {}, r"a\.link: is a link to nothing.*or leave it out"),
        ("caf*", {"format": "text"}, r"caf\\udce9': this name is not UTF-8.*Rename"),
        ("**/a.xyz", {"format": "text"}, r"loop/a\.xyz \(sources\.0\): is read already as .*weight says"),
    ],
)
def test_input_that_cannot_be_read_is_refused(tmp_path, name, options, says):
    (tmp_path / "a.xyz").write_text("x")
    (tmp_path / "a.link").symlink_to("objects/a")
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "caf\udce9").write_text("x")
    with pytest.raises(DataError, match=says):
        find_files((SourceConfig(input=str(tmp_path / name), **options),))


@pytest.mark.parametrize(
    ("protocol", "again"),
    [*(("", name) for name in ("a.jsonl", "./a.jsonl", "*.jsonl", "link", "hard")), ("file://", "*.jsonl")],
)
def test_a_file_is_read_once_however_it_is_named(tmp_path, protocol, again):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "b": "b"}\n')
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "link").symlink_to("a.jsonl")
    (tmp_path / "hard").hardlink_to(tmp_path / "a.jsonl")
    once = [SourceConfig(input=f"{protocol}{tmp_path}/{name}", format="jsonl") for name in ("empty.jsonl", "a.jsonl")]
    twice = SourceConfig(input=f"{protocol}{tmp_path}/{again}", format="jsonl")
    # A file of 0 bytes gives no text, and another key is another text.
    assert len(find_files((*once, once[0], replace(once[1], field="b")))) == 4
    with pytest.raises(DataError, match=r"\w \(sources\.2\): is read already as .*a\.jsonl \(sources\.1\)"):
        find_files((*once, twice))
