"""The first stage: read a chunk, cut its documents into sentences, write them as an Arrow file."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from data_prep.arrow_files import write_batches
from data_prep.extract.chunks import Chunk
from data_prep.extract.readers import read_documents
from data_prep.sentences import make_splitter
from data_prep.units import Counts

SCHEMA = pa.schema([("document_hash", pa.uint64()), ("sentences", pa.list_(pa.string()))])
DOCUMENTS_A_BATCH = 4096


@dataclass(frozen=True)
class ExtractTask:
    """A chunk, the language of its text, and where the sentences go."""

    chunk: Chunk
    language: str
    path: Path


def extract(task: ExtractTask) -> tuple[list[Path], Counts]:
    """Write the documents of a chunk; a document's hash is of its text, wherever it was found."""
    splitter = make_splitter(task.language)
    source = str(task.chunk.file.source)
    counts = {"documents": {source: 0}, "empty_documents": 0, "sentences": 0, "characters": 0, "bytes": 0}
    hashes: list[int] = []
    documents: list[list[str]] = []
    for paragraphs in read_documents(task.chunk):
        sentences = [sentence for paragraph in paragraphs for sentence in splitter.split(paragraph)]
        counts["documents"][source] += 1  # type: ignore[index]
        if not sentences:
            counts["empty_documents"] += 1  # type: ignore[operator]
            continue
        hashes.append(hash_document(paragraphs))
        documents.append(sentences)
        counts["sentences"] += len(sentences)  # type: ignore[operator]
        counts["characters"] += sum(map(len, sentences))  # type: ignore[operator]
    counts["bytes"] = task.chunk.end - task.chunk.start
    batches = (
        pa.record_batch([hashes[i : i + DOCUMENTS_A_BATCH], documents[i : i + DOCUMENTS_A_BATCH]], schema=SCHEMA)
        for i in range(0, len(hashes), DOCUMENTS_A_BATCH)
    )
    write_batches(task.path, SCHEMA, batches, compression="zstd")
    return [task.path], counts


def hash_document(paragraphs: list[str]) -> int:
    """Return 64 bits of the BLAKE2b hash of a document's text, whatever splits it into sentences."""
    return int.from_bytes(hashlib.blake2b("\n".join(paragraphs).encode(), digest_size=8).digest(), "little")
