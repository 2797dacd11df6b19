"""Documents of a chunk, whatever the format of its file."""

from collections.abc import Callable, Iterator

from data_prep.extract.columns import column_documents
from data_prep.extract.inputs import InputChunk
from data_prep.extract.problems import Problems
from data_prep.extract.text import Document, book_documents, jsonl_documents, text_documents
from data_prep.extract.wikipedia import wikipedia_documents

READERS: dict[str, Callable[[InputChunk, Problems], Iterator[Document]]] = {
    "text": text_documents,
    "book": book_documents,
    "jsonl": jsonl_documents,
    "parquet": column_documents,
    "arrow": column_documents,
    "wikipedia": wikipedia_documents,
}


def read_texts(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    """Yield (position, text) of the documents of a chunk, as they are in the file.

    Raises:
        DataError: The file cannot be read, or a document cannot and none may be dropped.
    """
    return READERS[chunk.file.format](chunk, problems)
