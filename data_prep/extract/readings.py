"""The assumptions under which files are read, in words: nobody has to guess which column is text, or where one ends."""

import sys
from collections.abc import Sequence

from data_prep.config.build import BuildConfig
from data_prep.config.languages import AUTO
from data_prep.extract.first_look import warn_of_likely_mistakes
from data_prep.extract.opening import InputFile
from megabert.foundation.urls import without_secrets

READINGS = {
    "text": "a line is a paragraph, a blank line ends a document",
    "book": "a file is a document, a blank line ends a paragraph",
    "jsonl": "a line is a document, its field {field!r} the text",
    "parquet": "a row is a document, its column {field!r} the text",
    "arrow": "a row is a document, its column {field!r} the text",
    "wikipedia": "an article is a document, without its markup",
}
"""Reading of each format."""


def say_readings(config: BuildConfig, files: Sequence[InputFile]) -> None:
    """Print how files are read, and warn of readings that are likely mistakes."""
    for line in describe_readings(config, files):
        print(line, file=sys.stderr)
    warn_of_likely_mistakes(files)


def describe_readings(config: BuildConfig, files: Sequence[InputFile]) -> list[str]:
    """Return a line for each way in which files of text are read."""
    groups: dict[str, list[InputFile]] = {}
    for file in files:
        if not file.holds_ids:
            groups.setdefault(_reading(config, file), []).append(file)
    return [
        f"{without_secrets(group[0].path)}{f' and {len(group) - 1:,} more' if group[1:] else ''}: read as {words}"
        for words, group in sorted(groups.items())
    ]


def _reading(config: BuildConfig, file: InputFile) -> str:
    language = config.language_of(file.source)
    by_document = "by the language that each document is found to have"
    sentences = by_document if language == AUTO else f"as in {language} (--language)"
    what = READINGS[file.format].format(field=file.field)
    coded = "" if file.format in ("parquet", "arrow") else f" in {file.encoding}"
    return f"{file.format}{coded}: {what}; sentences are cut {sentences}"
