"""Documents of a chunk, whatever the format of its file."""

from collections.abc import Callable, Iterator

from data_prep.extract.inputs import InputChunk
from data_prep.extract.problems import Problems
from data_prep.extract.text import Document, book_documents, jsonl_documents, text_documents


def _columns(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    from data_prep.extract.columns import column_documents

    return column_documents(chunk)


def _wikipedia(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    from data_prep.extract.wikipedia import wikipedia_documents

    return wikipedia_documents(chunk, problems)


READERS: dict[str, Callable[[InputChunk, Problems], Iterator[Document]]] = {
    "text": text_documents,
    "book": book_documents,
    "jsonl": jsonl_documents,
    "parquet": _columns,
    "arrow": _columns,
    "wikipedia": _wikipedia,
}


def read_texts(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    """Yield (place, text) of the documents of a chunk, as they stand in the file.

    Raises:
        DataError: The file cannot be read, or a document cannot and none may be dropped.
    """
    return READERS[chunk.file.format](chunk, problems)


def paragraphs_of(text: str) -> list[str]:
    """Return the lines of a text that hold something, stripped."""
    return list(filter(None, map(str.strip, text.splitlines())))
