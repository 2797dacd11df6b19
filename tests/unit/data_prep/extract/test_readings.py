"""The sentences on how files are read name all that was assumed: format, encoding, field, borders, language."""

from typing import get_args, get_type_hints

from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.extract.inputs import find_files
from data_prep.extract.readings import READINGS, describe_readings


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
