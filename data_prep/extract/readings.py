"""The assumptions under which files are read, in words: nobody has to guess which column is text, or where one ends."""

from collections.abc import Sequence
from itertools import groupby

from data_prep.config.build import BuildConfig
from data_prep.config.languages import AUTO
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


def describe_readings(config: BuildConfig, files: Sequence[InputFile]) -> list[str]:
    """Return a line for each way in which files of text are read."""

    def reading(file: InputFile) -> str:
        language = config.language_of(file.source)
        sentences = f"as in {language} (--language)"
        if language == AUTO:
            sentences = "by the language that each document is found to have"
        what = READINGS[file.format].format(field=file.field)
        coded = "" if file.format in ("parquet", "arrow") else f" in {file.encoding}"
        return f"{file.format}{coded}: {what}; sentences are cut {sentences}"

    texts = sorted((file for file in files if not file.holds_ids), key=reading)
    groups = [(words, list(group)) for words, group in groupby(texts, key=reading)]
    return [
        f"{without_secrets(group[0].path)}{f' and {len(group) - 1:,} more' * (len(group) > 1)}: read as {words}"
        for words, group in groups
    ]
