"""Where the streams of a multistream .bz2 dump start: by its index, or by the marks of the streams themselves.

Such a dump is many bzip2 streams end to end, each with about a hundred pages, so that it can be decompressed in parts.
"""

import bz2
import re

from data_prep.extract.opening import BLOCK_BYTES, find_paths, open_stored
from megabert.errors import DataError

# A stream's header and the mark of its first block (pi in BCD): ten bytes that no data of a dump is likely to hold.
STREAM = re.compile(rb"BZh[1-9]1AY&SY")
MARK_BYTES = 10


def stream_starts(path: str, size: int) -> list[int]:
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
        if candidate != name and find_paths(f"{folder}{slash}{candidate}"):
            return f"{folder}{slash}{candidate}"
    return None


def _read_index(index: str, path: str, size: int) -> list[int]:
    """Read lines ``offset:page:title``; the offsets repeat for the pages of one stream."""
    starts, before = [0], b"0"
    with open_stored(index) as stored, bz2.open(stored) if index.endswith(".bz2") else stored as lines:
        for line in lines:
            offset = line.split(b":", 1)[0]
            if offset != before:  # the first page of another stream
                before = offset
                if not offset.isdigit() or not starts[-1] < int(offset) < size:
                    raise DataError(
                        f"{index}: names the offset {offset[:20]!r}, which is not in {path} ({size} bytes). The "
                        "index belongs to another file: fetch the right one, or remove it; then the streams are "
                        "searched for."
                    )
                starts.append(int(offset))
    return starts


def _scan(path: str) -> list[int]:
    """Search the file for the marks of streams; about a second for a gigabyte, once a build."""
    starts, begin, held = [0], 0, b""
    with open_stored(path) as stream:
        while block := stream.read(16 * BLOCK_BYTES):
            held += block
            starts += [begin + match.start() for match in STREAM.finditer(held) if begin + match.start() > starts[-1]]
            # A mark may be cut by the end of a block, so the end of this one is searched again.
            begin += max(0, len(held) - MARK_BYTES)
            held = held[-MARK_BYTES:]
    return starts
