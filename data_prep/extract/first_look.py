"""A first look at input files, before anything is built: files that hold no text, and text whose lines are wrapped.

It also puts into words under which assumptions files are read: nobody has to guess which column is text, or where one
ends.
"""

import codecs
import re
import sys
import tarfile
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import PurePosixPath

from data_prep.config.build import BuildConfig
from data_prep.config.languages import AUTO
from data_prep.execution.records import Problems
from data_prep.extract.opening import BLOCK_BYTES, InputFile, content_blocks, is_url, open_stored
from data_prep.extract.text import UNCUTTABLE
from megabert.foundation.errors import DataError, without_secrets

HEAD_BYTES = 1 << 18
LOOKS_PER_SOURCE = 64
"""Files of a source that are looked at for wrapped lines, the first ones; of remote files, all that are looked at."""
_PANDOC = (
    "Extract its text first (`pandoc -t plain --wrap=none FILE -o FILE.txt`) and give that, one book or article a "
    "file, with --format book"
)
_UNPACK = "Unpack it first, and give the files that are in it"
_TO_COLUMNS = (
    "Make a table of it first: python -c \"from pyarrow import csv, parquet; parquet.write_table(csv.read_csv('FILE'), "
    "'FILE.parquet')\", and choose the column with --field (for tabs: csv.ParseOptions(delimiter='\\t'))"
)
_TO_LINES = "JSON Lines are read, one object a line: `jq -c '.[]' FILE > FILE.jsonl` makes them of a list"
_RENAME = "Unpack it; text may stay packed, and is told by the suffix {}"
_IDS_BY_SUFFIX = "Give it the suffix of its kind: lists of ids are read from .jsonl, .parquet, .arrow and .npy"
_NUMPY_ARRAY = ("an array of numpy", "Say --format ids if it holds ids of pieces")
TABLES = (".csv", ".tsv")
OTHER_KINDS = {
    "CSV": (TABLES, _TO_COLUMNS),
    "PDF": ((".pdf",), "Extract its text first (`pdftotext FILE`, of poppler), and give that with --format book"),
    "DOCX": ((".docx", ".doc", ".odt", ".rtf"), _PANDOC),
    "EPUB": ((".epub", ".mobi"), _PANDOC),
    "HTML": ((".html", ".htm", ".xhtml"), _PANDOC.replace("-t plain", "-f html -t plain")),
    "an archive": ((".zip", ".tar", ".tgz", ".7z", ".rar"), _UNPACK),
    "a spreadsheet": ((".xlsx", ".xls", ".ods"), "Save its table as CSV. " + _TO_COLUMNS),
    _NUMPY_ARRAY[0]: ((".npy",), _NUMPY_ARRAY[1]),
    "JSON": ((".json",), _TO_LINES),
}
"""Kinds of files that are not read: suffixes, and what to do."""
_ARCHIVE = f"{_UNPACK}; of a DOCX, EPUB or ODT, {_PANDOC[0].lower()}{_PANDOC[1:]}"
SIGNATURES: tuple[tuple[re.Pattern[bytes], str, str], ...] = tuple(
    (re.compile(begin), kind, remedy)
    for begin, kind, remedy in (
        (b"%PDF-", "PDF", OTHER_KINDS["PDF"][1]),
        (b"PK\x03\x04", "a ZIP archive (a DOCX, EPUB, ODT or XLSX is one)", _ARCHIVE),
        (b"\xd0\xcf\x11\xe0", "an old Office document", "Convert it to plain text with the program that wrote it"),
        (rb"\{\\rtf", "RTF", _PANDOC),
        (b"PAR1\x15", "Parquet", "Say --format parquet"),
        (b"ARROW1", "Arrow", "Say --format arrow"),
        (b"\xff\xff\xff\xff", "an Arrow stream", "Say --format arrow"),
        (b"FEA1\0", "Feather 1", "Write it as Parquet: pyarrow.feather.read_table, pyarrow.parquet.write_table"),
        (b"\x1f\x8b", "gzip", _RENAME.format(".gz")),
        (rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", "bzip2", _RENAME.format(".bz2")),
        (b"\xfd7zXZ", "xz", _RENAME.format(".xz")),
        (rb"\x28\xb5\x2f\xfd", "Zstandard", _RENAME.format(".zst")),
        (b"\x04\x22\x4d\x18", "LZ4", "Unpack it first: lz4 -d FILE"),
        (b"\x1f\x9d", "packed by compress", "Unpack it first: gzip -d FILE"),
        (b"7z\xbc\xaf", "an archive of 7-Zip", _UNPACK),
        (b"Rar!\x1a\x07", "an archive of RAR", _UNPACK),
        (rb"WARC/\d\.\d+\r?\n", "an archive of the web", "Extract the text of its pages first, as JSON Lines"),
        (b"\x93NUMPY", *_NUMPY_ARRAY),
        (b"version https://git-lfs", "a pointer of Git LFS to a file", "Fetch the file itself, with Git LFS"),
        (b"Obj\x01", "Avro", "Write its text as JSON Lines or Parquet"),
        (rb"07070([12][\da-fA-F]{104}|7[0-7]{70})", "an archive of cpio", _UNPACK),
        (b"!<arch>\n", "an archive of ar", _UNPACK),
        (b"\x89HDF", "HDF5", "Write its text as JSON Lines or Parquet"),
        (b"SQLite format 3\0", "a database", "Export its text as JSON Lines"),
        (b"\x89PNG", "a picture", "Leave it out"),
        (b"\xff\xd8\xff", "a picture", "Leave it out"),
        (b"\x7fELF", "a program", "Leave it out"),
    )
)
"""First bytes of files that are not text, whatever they are named; words do not begin so. The kind, and the remedy."""
_COMPRESSED = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ", "zst": b"\x28\xb5\x2f\xfd"}
"""First bytes by `InputFile.compression`."""
_OWN = {"parquet": (b"PAR1",), "arrow": (b"ARROW1", b"\xff\xff\xff\xff"), "npy": (b"\x93NUMPY", b"PK\x03\x04")}
"""First bytes of the formats that are not text. A ZIP archive may be an npz, which the reader of arrays names."""
_OBJECT = rb'\{\s*"(?:[^"\\]|\\.){0,200}"\s*:'
_BEGINS: tuple[tuple[re.Pattern[bytes], str, str], ...] = tuple(
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*" + pattern, re.IGNORECASE), kind, remedy)
    for pattern, kind, remedy in (
        (rb"(<!--[^>]*-->\s*)?<(!doctype html|html[\s>]|head>|body[\s>])", "HTML", OTHER_KINDS["HTML"][1]),
        (_OBJECT, "JSON Lines", "Say --format jsonl, and with --field which key holds the text"),
        (rb"\[\s*" + _OBJECT, "JSON", OTHER_KINDS["JSON"][1]),
        (rb"(<\?xml[^>]*>\s*)?<mediawiki\b", "a dump of a wiki", "Say --format wikipedia"),
        (rb'<doc id="', "what wikiextractor writes", "Let it write --json, and say --format jsonl"),
        (rb"<(\?xml\b|doc>\s*<docno>)", "XML", _PANDOC),
    )
)
"""How text begins that is not plain: its kind, and the remedy."""
_ENDS = frozenset(".!?:;\u2026\"'\u201c\u201d\u2019\u00bb\u00ab)]\u3002\uff01\uff1f\u300d\u300f\u0964\u06d4\u061f*=-_|")
MIN_WIDTH, MAX_WIDTH = 40, 120
"""Characters of a line that was wrapped by a program, about."""
MIN_LINES = 50
MIN_WRAPPED_SHARE = 0.5


def unknown_format(path: str, suffix: str) -> DataError:
    """Return the error for a file whose name tells no format that is read."""
    for kind, (suffixes, remedy) in OTHER_KINDS.items():
        if suffix in suffixes:
            return DataError(f"{path}: {kind} ({suffix}) is not read. {_for(path, remedy)}.")
    return DataError(
        f"{path}: the name shows no format ({suffix!r} is not known). Say --format text, where blank lines part "
        "documents, --format book, where a file is one, or jsonl, parquet, arrow or wikipedia."
    )


def refuse_other_kinds(files: Sequence[InputFile]) -> None:
    """Look at the first bytes of each file.

    Raises:
        DataError: A file is of another kind than its name or ``--format`` says, or in another encoding.
    """
    remote = 0
    for file in files:
        remote += is_url(file.path)
        if not file.bytes or (is_url(file.path) and remote > LOOKS_PER_SOURCE):
            continue
        if file.compression:
            _require_compression(file)
        head = _head(file, 1 << 10)
        if head.startswith(_OWN.get(file.format, ())):
            continue
        if _is_tar(head):
            raise DataError(f"{file.path}: is a tar archive, not {file.format}. {_UNPACK}.")
        for begin, kind, remedy in SIGNATURES if file.format in ("jsonl", "wikipedia") else SIGNATURES + _BEGINS:
            if begin.match(head):
                advice = _IDS_BY_SUFFIX if file.holds_ids and remedy.startswith("Say ") else _for(file.path, remedy)
                raise DataError(f"{file.path}: is {kind}, not {file.format}. {advice}.")
        is_text = file.format not in _OWN and not UNCUTTABLE.match(file.encoding)
        if is_text and (encoding := _wide_encoding(head)):
            raise DataError(
                f"{file.path}: is not {file.encoding}, it looks like {encoding}. Say --encoding {encoding}."
            )


def _require_compression(file: InputFile) -> None:
    """Refuse a name of a compression that the bytes are not in: a download may have been unpacked on its way."""
    begin = _COMPRESSED[file.compression]
    with open_stored(file.path) as stream:
        head = stream.read(128)
    stored = head[:8]
    # Padding may come before the data, in Zstandard a frame to skip; a file may also be cut here.
    is_padding = not stored.strip(b"\0") or (file.compression == "zst" and stored[1:4] == b"*M\x18")
    if is_padding or stored[: len(begin)] == begin[: len(stored)]:
        return
    kind = next((kind for other, kind, _ in SIGNATURES if other.match(head)), "not compressed so")
    raise DataError(
        f"{file.path}: its name says {file.compression}, but it is {kind}: it begins with {ascii(stored)[1:]}. Correct "
        "the suffix; a download that was unpacked on its way is plain text."
    )


def _is_tar(head: bytes) -> bool:
    """Return whether bytes begin with a member's header, whose checksum fits."""
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _wide_encoding(head: bytes) -> str:
    """Return the UTF-16 or UTF-32 that bytes are in, by their mark or their zero bytes; else nothing."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if len(head) >= 8 and not (any(head[0::4]) or any(head[1::4])):  # no character is above 0x10FFFF, few above 0xFFFF
        return "utf-32-be"
    if len(head) >= 8 and not (any(head[2::4]) or any(head[3::4])):
        return "utf-32-le"
    zeros = head[0::2].count(0), head[1::2].count(0)
    half = len(head) // 2
    if half and max(zeros) > half // 2 > 0 and min(zeros) < half // 8:
        return "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"
    return ""


def warn_of_likely_mistakes(files: Sequence[InputFile]) -> None:
    """Say on stderr which sources of plain text are tables, or have most of their line ends inside of sentences.

    Where blank lines part documents, such a text falls apart: its paragraphs become documents, and half of the
    sentences end in the middle.
    """
    # Sources are in order; a shell that expands a glob makes one of each file, so there may be tens of thousands.
    for _, group in groupby((file for file in files if file.format == "text"), key=lambda file: file.source):
        texts = list(group)
        # A table whose rows would become text.
        paths = (without_secrets(file.path) for file in texts)
        if table := next((path for path in paths if PurePosixPath(path).suffix.lower() in TABLES), None):
            print(
                f"warning: {table}: is read as plain text, with the commas and numbers of its table. "
                f"{_for(table, OTHER_KINDS['CSV'][1])}.",
                file=sys.stderr,
            )
        # Line ends inside of sentences, counted over the first files in which they prevail.
        wrapped, inside, ends = [], 0, 0
        for file in texts[:LOOKS_PER_SOURCE]:
            own_inside, own_ends = count_wrapped(_head(file, HEAD_BYTES).decode(file.encoding, "replace"))
            if own_inside > MIN_WRAPPED_SHARE * own_ends:
                wrapped.append(file.path)
                inside, ends = inside + own_inside, ends + own_ends
        if ends < MIN_LINES:
            continue
        others = f" (and {len(wrapped) - 1} more files)" if len(wrapped) > 1 else ""
        print(
            f"warning: {wrapped[0]}{others}: the lines look wrapped: {inside:,} of {ends:,} line ends that were looked "
            "at are inside a sentence. With --format text each line is a paragraph and a blank line ends a document: "
            "paragraphs become documents and sentences are cut. Where a file is one document, say --format book, which "
            "joins the lines of a paragraph; else write each paragraph on one line, with blank lines between documents "
            "only.",
            file=sys.stderr,
        )


def count_wrapped(text: str) -> tuple[int, int]:
    """Return how many line ends of a text are inside a sentence, and how many have another line below.

    Args:
        text: The begin of a text, in which blank lines part paragraphs or documents.
    """
    lines = [line.strip() for line in text.splitlines()]
    inside = ends = 0
    for line, following in pairwise(lines):
        if not line or not following:
            continue
        ends += 1
        # A small letter continues a sentence; in scripts without case any letter may.
        is_continued = following[0].islower() or (following[0].isalpha() and not following[0].isupper())
        inside += MIN_WIDTH <= len(line) <= MAX_WIDTH and line[-1] not in _ENDS and is_continued
    return inside, ends


def _head(file: InputFile, size: int) -> bytes:
    """Return the first bytes of a file's content; fewer if it is damaged."""
    stored = BLOCK_BYTES if file.compression else size
    return next(content_blocks(file, Problems(is_strict=False), 0, min(file.bytes, stored)), b"")[:size]


def _for(path: str, remedy: str) -> str:
    return remedy.replace("FILE", PurePosixPath(without_secrets(path)).name)


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
