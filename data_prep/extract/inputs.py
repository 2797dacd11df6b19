"""Which files a build reads, and how they are cut into chunks that workers read independently.

The plan is made from sizes alone, without reading text: a chunk of a text file is a range of bytes that begins and ends
anywhere. Its reader (`text.chunk_blocks`) looks for the first border of documents after either end. So a document
belongs to the chunk in which the border before it ends, and every document has exactly one chunk.
"""

import bz2
import re
from collections.abc import Hashable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath

from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.execution.build_state import InputRecord
from data_prep.execution.executors import Executor
from data_prep.extract import opening
from data_prep.extract.columns import part_sizes
from data_prep.extract.first_look import refuse_other_kinds, unknown_format
from data_prep.extract.ids import FORMATS_OF_IDS, OFFSETS_SUFFIX, chunk_borders, offsets_path
from data_prep.extract.text import UNCUTTABLE
from megabert.foundation.errors import DataError, without_secrets
from megabert.tokens.tokenization.huggingface import tokenizer_files

FORMATS = {
    "jsonl": (".jsonl", ".ndjson"),
    "text": (".txt", ".text", ""),
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather"),
    "wikipedia": (".xml",),
}
"""Suffixes by which a format is known, without the suffix of a compression."""
MIN_CHUNK_BYTES = 256 * 1024
CHUNKS_OF_A_SMALL_INPUT = 16
"""Chunks that an input is cut into, at least, unless they would be smaller than ``MIN_CHUNK_BYTES``."""
MAX_CHUNKS = 131_072
"""Chunks that an input is cut into, at most, about. From a terabyte on they are larger than the default."""
# A bzip2 stream's header and the mark of its first block (pi in BCD): ten bytes that no data of a dump is likely to
# hold. A multistream dump is many such streams end to end, each with about a hundred pages.
STREAM = re.compile(rb"BZh[1-9]1AY&SY")
MARK_BYTES = 10
OTHER_INDEX = "The index belongs to another file: fetch the right one, or remove it; then the streams are searched for."


def find_files(sources: tuple[SourceConfig, ...]) -> list[opening.InputFile]:
    """Expand the sources' globs, in order, each source's files sorted by name.

    Raises:
        DataError: A glob matches nothing, a file is named twice, a format is unknown or not the one that was named, an
            encoding is unknown, or all files are empty.
    """
    files = [file for index, source in enumerate(sources) for file in _files_of(index, source)]
    if not sum(file.bytes for file in files):
        raise DataError(f"The corpus is empty: {len(files)} file(s) of 0 bytes. Give --input files that hold text.")
    _refuse_repeated(files)
    refuse_other_kinds(files)
    return files


def _refuse_repeated(files: list[opening.InputFile]) -> None:
    """Refuse a file that would be read twice, because patterns overlap or a link leads to it."""
    first: dict[tuple[Hashable, str], opening.InputFile] = {}
    for file in files:
        earlier = first.setdefault((opening.file_identity(file.path), file.field), file)
        if file.bytes and earlier is not file:
            raise DataError(
                f"{file.path} (sources.{file.source}): is read already as {earlier.path} (sources.{earlier.source}). "
                "Name it once, and no link to it; weight says how often its documents are used."
            )


def hash_inputs(
    files: list[opening.InputFile], config: BuildConfig, executor: Executor, more: Iterable[str] = ()
) -> list[InputRecord]:
    """Return a record, with its SHA-256, of each file of the input, of a given vocabulary, of a language model, and of
    ``more``.
    """
    sizes = [(file.path, file.bytes) for file in files]
    models = [] if config.language_model is None else [config.language_model]
    sizes += [(path, opening.size_and_time(path)[0]) for path in (*_vocabulary_files(config), *models, *more)]
    hashes = dict(executor.run(opening.input_sha256, [path for path, _ in sizes]))
    return [InputRecord(without_secrets(path), size, hashes[index]) for index, (path, size) in enumerate(sizes)]


def _vocabulary_files(config: BuildConfig) -> list[str]:
    """Return the table of symbols, or the files of the tokenizer, that a build is given."""
    if config.tokenizer is None:
        return [] if config.symbols is None else [config.symbols]
    return [str(path) for path in tokenizer_files(Path(config.tokenizer))]


def _files_of(index: int, source: SourceConfig) -> list[opening.InputFile]:
    try:
        "".encode(source.encoding)
    except (LookupError, ValueError):  # a ValueError: a NUL in the name
        raise DataError(
            f"{source.title}: unknown encoding {source.encoding!r}. Use a name that Python knows, such as utf-8, "
            "cp1252, cp949 or gb18030."
        ) from None
    paths = opening.find_paths(source.input)
    if not paths:
        raise DataError(f"{source.input}: no such file. Give --input an existing path, or a quoted glob that matches.")
    holds_ids = source.format == "ids"
    if holds_ids:
        paths = _with_offsets(paths)
    files = []
    for path in paths:
        if path.encode(errors="replace").decode() != path:
            raise DataError(f"{path!a}: this name is not UTF-8, and no file of a build could hold it. Rename it.")
        name, compression = _format_of(path, source)
        size, modified_ns = opening.size_and_time(path)
        reading = source.encoding, source.key, compression, holds_ids, source.second_field or ""
        files.append(opening.InputFile(path, size, index, name, *reading, modified_ns))
    return files


def _with_offsets(paths: list[str]) -> list[str]:
    """Add the offsets of each array of ids: they are an input too, and hashed, but hold no document."""
    offsets = {offsets_path(path) for path in paths if _is_array(path)}
    for path in paths:
        if path.lower().endswith(OFFSETS_SUFFIX) and path not in offsets:
            array = path[: -len(OFFSETS_SUFFIX)] + ".npy"
            raise DataError(
                f"{path}: its array {array} is not among the input. Fetch the array, give it to --input as well, "
                "or leave out its offsets."
            )
    local = {path for path in offsets if not opening.is_url(path)}
    for path in local:
        if not Path(path).exists():
            raise DataError(
                f"{path}: is missing; it says where each list of ids begins in the array next to it, and how many ids "
                "there are in all. Write it with numpy.save, or give lists in JSON Lines, Parquet or Arrow."
            )
    return sorted({*paths, *local})


def _is_array(path: str) -> bool:
    """Whether a file is an array of ids, and not the offsets of one."""
    name = without_secrets(path).lower()
    return name.endswith(".npy") and not name.endswith(OFFSETS_SUFFIX)


def _format_of(path: str, source: SourceConfig) -> tuple[str, str]:
    """Return format and compression, from the name if they are not given."""
    name = PurePosixPath(without_secrets(path))
    compression = opening.COMPRESSIONS.get(name.suffix.lower(), "")
    if compression:
        name = name.with_suffix("")
    if source.format == "ids":
        return _container_of(name, path, source, compression), compression
    # A dump is named such as enwiki-20260101-pages-articles1.xml-p1p41242.
    is_dump = re.search(r"pages-articles.*\.xml", name.name)
    suffix = ".xml" if is_dump else name.suffix.lower()
    by_name = next((name for name, suffixes in FORMATS.items() if suffix in suffixes), None)
    file_format = by_name if source.format == "auto" else source.format
    if file_format is None:
        raise unknown_format(path, suffix)
    if file_format in ("parquet", "arrow"):  # which compress their columns themselves
        compression = ""
    return file_format, compression


def _container_of(name: PurePosixPath, path: str, source: SourceConfig, compression: str) -> str:
    """Return the format of the file that lists of ids are in."""
    containers = {suffix: kind for kind in FORMATS_OF_IDS for suffix in FORMATS.get(kind, (f".{kind}",))}
    if name.suffix.lower() not in containers:
        raise DataError(
            f"{path}: the name shows no format of ids ({name.suffix!r} is not known); they are read from files named "
            f"{', '.join(containers)}."
        )
    container = containers[name.suffix.lower()]
    if compression and container != "jsonl":
        raise DataError(f"{path}: of lists of ids only JSON Lines are read compressed. Unpack the file first.")
    if source.second_field and container == "npy":
        raise DataError(
            f"{path}: an array has one list per document, and second_field={source.second_field!r} asks for two. Write "
            "pairs as JSON Lines, Parquet or Arrow."
        )
    return container


def chunk_size(total: int, chunk_bytes: int) -> int:
    """Return the bytes of a chunk: ``chunk_bytes``, or less of a small input so that several workers share it.

    Chunks of many terabytes are larger, for each is a unit to hand out. A worker reads a chunk piece by piece, and
    holds no more of a large one.
    """
    return max(1, min(chunk_bytes, max(MIN_CHUNK_BYTES, total // CHUNKS_OF_A_SMALL_INPUT)), total // MAX_CHUNKS)


def plan_chunks(files: list[opening.InputFile], chunk_bytes: int) -> list[opening.InputChunk]:
    """Cut files into chunks of about the size that `chunk_size` returns.

    The plan depends on the files alone, never on the number of workers. Compressed files are one chunk each, except
    multistream dumps.

    Raises:
        DataError: All files are tables without a row.
    """
    size = chunk_size(sum(file.bytes for file in files), chunk_bytes)
    chunks = [chunk for file in files for chunk in _chunks_of(file, size)]
    if not chunks:
        raise DataError(f"The corpus is empty: no row in {files[0].path}. Give --input files that hold text.")
    return chunks


def _chunks_of(file: opening.InputFile, size: int) -> Iterator[opening.InputChunk]:
    if not file.bytes:
        return
    if file.format in ("parquet", "arrow"):
        yield from _grouped(file, part_sizes(file), size)
    elif file.format == "npy":
        if _is_array(file.path):
            yield from (opening.InputChunk(file, *border) for border in chunk_borders(file, size))
    elif file.format == "wikipedia" and file.compression == "bz2":
        borders = [*_stream_starts(file.path, file.bytes), file.bytes]
        for group in _grouped(file, [end - start for start, end in pairwise(borders)], size):
            _require_stream(file.path, borders[group.start])
            yield opening.InputChunk(file, borders[group.start], borders[group.end], group.bytes)
    elif file.compression or file.format == "book" or UNCUTTABLE.match(file.encoding):
        yield opening.InputChunk(file, 0, file.bytes, file.bytes)
    else:
        for start in range(0, file.bytes, size):
            end = min(start + size, file.bytes)
            yield opening.InputChunk(file, start, end, end - start)


def _grouped(file: opening.InputFile, sizes: list[int], wanted: int) -> Iterator[opening.InputChunk]:
    """Yield runs of consecutive parts of at least ``wanted`` bytes, the last perhaps less."""
    # Never cut within a part: a row group or a compressed stream can only be read as a whole.
    first = held = 0
    for index, size in enumerate(sizes):
        held += size
        if held >= wanted or index + 1 == len(sizes):
            yield opening.InputChunk(file, first, index + 1, held)
            first, held = index + 1, 0


def _stream_starts(path: str, size: int) -> list[int]:
    """Return the byte at which each stream starts, 0 first.

    Args:
        path: A .bz2 file. Only one with "multistream" in its name is cut.
        size: Bytes of the file.

    Raises:
        DataError: The index next to the file belongs to another one.
    """
    if "multistream" not in path:
        return [0]
    index = _index_of(path)
    return _scan(path) if index is None else _read_index(index, path, size)


def _index_of(path: str) -> str | None:
    """Return the index of enwiki-DATE-pages-articles-multistream.xml.bz2, if it is next to it."""
    folder, slash, name = path.rpartition("/")
    stem = re.sub(r"multistream(\d*)\.xml", r"multistream-index\1.txt", name)
    for candidate in (stem, stem.removesuffix(".bz2")):
        index = f"{folder}{slash}{candidate}"
        if candidate != name and opening.find_paths(index) == [index]:
            return index
    return None


def _read_index(index: str, path: str, size: int) -> list[int]:
    """Read lines ``offset:page:title``; the offsets repeat for the pages of one stream."""
    starts, before = [0], b"0"
    try:
        with opening.open_stored(index) as stored, bz2.open(stored) if index.endswith(".bz2") else stored as lines:
            for line in lines:
                offset = line.split(b":", 1)[0]
                if offset == before:
                    continue
                # The first page of another stream.
                if not re.fullmatch(rb"\d{1,18}", offset) or not starts[-1] < int(offset) < size:
                    raise DataError(
                        f"{index}: names the offset {offset[:20]!r}, which {path} ({size} bytes) lacks. {OTHER_INDEX}"
                    )
                starts.append(int(offset))
                before = offset
    except (EOFError, OSError) as error:
        raise DataError(
            f"{index}: is cut or damaged ({error}). Fetch it again, or remove it; then the streams are searched for."
        ) from error
    return starts


def _require_stream(path: str, start: int) -> None:
    """Refuse an offset at which no stream begins: nothing up to the next chunk could be decompressed.

    Raises:
        DataError: The index next to the file has wrong offsets.
    """
    if start == 0:
        return
    with opening.open_stored(path) as stream:
        stream.seek(start)
        is_stream = STREAM.match(stream.read(MARK_BYTES))
    if not is_stream:
        raise DataError(
            f"{path}: no bzip2 stream begins at byte {start}, where the index next to it names one. {OTHER_INDEX}"
        )


def _scan(path: str) -> list[int]:
    """Search the file for the marks of streams; about a second for a gigabyte, once a build."""
    starts, begin, held = [0], 0, b""
    with opening.open_stored(path) as stream:
        while block := stream.read(16 * opening.BLOCK_BYTES):
            held += block
            starts += [begin + match.start() for match in STREAM.finditer(held) if begin + match.start() > starts[-1]]
            # A mark may be cut by the end of a block, so the end of this one is searched again.
            begin += max(0, len(held) - MARK_BYTES)
            held = held[-MARK_BYTES:]
    return starts
