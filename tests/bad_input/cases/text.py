"""Corpora that are hostile, damaged or of another kind than they seem."""

import io
import json
import random
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from bad_input.given import copy, write
from bad_input.harness import Case
from support.fasttext_models import model_bytes

FLAGS = "--output out --workers 1 --vocab-size 300 --lengths 32 --validation-share 0"
SENTENCES = "The ship left the harbour at dawn. Nobody on the quay had slept. The sea was calm for once. "


class Corpus(NamedTuple):
    """A file that a user gives to a build."""

    name: str
    file: str
    content: bytes | str | Callable[[], bytes | str]
    code: int | tuple[int, ...]
    says: str = ""
    flags: str = ""
    quick: bool = False


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def arrow(change: Callable[[bytes], bytes]) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"text": [SENTENCES * 3] * 40})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return change(sink.getvalue())


def large_cell() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": [SENTENCES * 2_000_000, *[SENTENCES] * 9]}), sink)
    return sink.getvalue()


def bad_offsets(content: bytes) -> bytes:
    """Let the offsets of the strings point far outside: sound framing, senseless inside."""
    first = len(SENTENCES) * 3
    genuine = first.to_bytes(4, "little") + (2 * first).to_bytes(4, "little")
    assert genuine in content
    return content.replace(genuine, (1 << 30).to_bytes(4, "little") + (5).to_bytes(4, "little"))


def twice(name: str) -> bytes:
    sink = io.BytesIO()
    batch = pa.record_batch([pa.array([SENTENCES])] * 2, names=[name] * 2)
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


SOUND_LINES = jsonl(*[{"text": SENTENCES}] * 9)
TEXT = (SENTENCES * 5 + "\n\n") * 40
NOISE = random.Random(7).randbytes(50_000)
WIKI = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><siteinfo/>{}</mediawiki>'
PAGE = "<page><title>{}</title><ns>0</ns><id>1</id><revision><id>1</id><text>{}</text></revision></page>"
MEGABYTE = 1_000_000

REFUSED = (
    Corpus("only blank lines", "a.txt", "\n \n\t\n" * 50, 3, "a.txt"),
    Corpus("one word", "a.txt", "word", 3),
    Corpus("one document", "a.txt", SENTENCES * 30, 3),
    Corpus("only punctuation", "a.txt", "... !!! ???\n\n" * 50, (0, 3)),
    Corpus("noise", "a.txt", NOISE, 3, "a.txt"),
    Corpus("noise as gzip", "a.txt.gz", NOISE, 3, "a.txt.gz"),
    Corpus("noise as Parquet", "a.parquet", NOISE, 3, "a.parquet"),
    Corpus("noise as Arrow", "a.arrow", NOISE, 3, "a.arrow"),
    Corpus("noise as a dump of Wikipedia", "a.xml", NOISE, 3, "a.xml", "--format wikipedia"),
    Corpus("cut Arrow", "a.arrow", arrow(lambda content: content[: len(content) // 2]), 3, "a.arrow"),
    Corpus("Arrow with offsets outside", "a.arrow", arrow(bad_offsets), 3, "a.arrow", quick=True),
    Corpus("Arrow of the same name twice", "a.arrow", twice("text"), 3, "two columns"),
    Corpus("CSV", "a.csv", "id,text\n" + "".join(f"{i},{SENTENCES}\n" for i in range(50)), 3, "read_csv", quick=True),
    Corpus("CSV as text", "a.csv", "id,text\n" + "1,word\n" * 50, (0, 3), "read_csv", "--format text"),
    Corpus("PDF", "a.pdf", b"%PDF-1.7\n" + NOISE, 3, "PDF"),
    Corpus("PDF as text", "a.pdf", b"%PDF-1.7\n" + NOISE, 3, "PDF", "--format text"),
    Corpus("PDF named as text", "a.txt", b"%PDF-1.7\n" + NOISE, 3, "pdftotext a.txt"),
    Corpus("HTML", "a.html", f"<html><body><p>{TEXT}</p></body></html>", 3, "a.html"),
    Corpus("an unknown format", "a.dat", TEXT, 3, "--format"),
    Corpus("a codec that is no encoding", "a.txt", TEXT, 3, "rot13", "--encoding rot13"),
    Corpus("a dump without pages", "a.xml", WIKI.format(""), 3, "a.xml", "--format wikipedia"),
)

HOSTILE_PAGES = {  # what comes before a sound page in a dump
    "unclosed tables": PAGE.format("A", "{|\n| a\n" * 100_000),
    "unclosed braces": PAGE.format("A", "{{a|" * 200_000),
    "unclosed titles and texts": "<page>" + "<title><text" * 200_000 + "</page>",
    "references that cross templates": PAGE.format("A", "{{a|&lt;ref&gt;}}&lt;/ref&gt;" * 50_000),
    "unclosed references": PAGE.format("A", "&lt;ref&gt;a " * 100_000),
    "unclosed links": PAGE.format("A", "[[a|" * 200_000),
    "titles without end": PAGE.format("A", "=" * MEGABYTE),
    "headings that never close": PAGE.format("A", "== a " * 200_000),
    "apostrophes without end": PAGE.format("A", "'" * MEGABYTE),
    "entities in entities": PAGE.format("A", "&amp;amp;" * 200_000),
    "a title of a megabyte": PAGE.format("t" * MEGABYTE, TEXT),
}
TAKEN = (  # odd, and no reason to refuse: within bounds of time and memory
    Corpus("quotation marks without end", "a.txt", '"' * (4 * MEGABYTE) + "\n\n" + TEXT, (0, 3)),
    Corpus("quotes that open only", "a.txt", ("\u201c" * 1000 + "word. ") * 1000 + "\n\n" + TEXT, (0, 3)),
    Corpus("combining characters", "a.txt", "a" + "\u0301" * MEGABYTE + "\n\n" + TEXT, (0, 3)),
    Corpus("mixed combining characters", "a.txt", "a" + "\u0301\u0327" * MEGABYTE + "\n\n" + TEXT, (0, 3)),
    Corpus("one word of a million letters", "a.txt", "x" * MEGABYTE + "\n\n" + TEXT, (0, 3)),
    Corpus("the same, bytes", "a.txt", "xyz" * MEGABYTE + "\n\n" + TEXT, (0, 3), flags="--pieces byte_bpe"),
    Corpus("full stops without end", "a.txt", ". " * MEGABYTE + "\n\n" + TEXT, (0, 3)),
    Corpus("one sentence of four megabytes", "a.txt", "word " * MEGABYTE + "\n\n" + TEXT, (0, 3)),
    Corpus("spaces without end", "a.txt", "a" + " " * (8 * MEGABYTE) + "b\n\n" + TEXT, (0, 3)),
    Corpus("one line of JSON of 60 MB", "a.jsonl", lambda: jsonl({"text": SENTENCES * 600_000}) + SOUND_LINES, (0, 3)),
    Corpus("one cell of 200 MB", "a.parquet", large_cell, (0, 3), "oversized"),
    Corpus("backticks that open only", "a.txt", "`a. 'b. " * (MEGABYTE // 8) + "\n\n" + TEXT, 0),
    Corpus("mojibake without end", "a.txt", "\u00c3\u00a9" * MEGABYTE + "\n\n" + TEXT, (0, 3)),
    Corpus("surrogates in JSON", "a.jsonl", jsonl({"text": f"\ud800 {SENTENCES}"}) + SOUND_LINES, (0, 3)),
    Corpus("null bytes", "a.txt", "a\x00b. " * 1000 + "\n\n" + TEXT, (0, 3)),
    Corpus("escape sequences", "a.txt", "\x1b[31mred\x1b[0m. " * 1000 + "\n\n" + TEXT, (0, 3)),
    *(
        Corpus(name, "a.xml", WIKI.format(page + PAGE.format("B", TEXT)), (0, 3), flags="--format wikipedia")
        for name, page in HOSTILE_PAGES.items()
    ),
)
LANGUAGES = "--language auto --language-model lid.bin"
UNFIT_MODELS = {  # content of lid.bin, what the message names
    "missing": (None, "lid.bin: No such file"),
    "cut": (model_bytes()[:-100], "its weights would take"),
    "labels of reviews": (model_bytes({"positive": ["good"], "negative": ["bad"]}), "no codes of languages"),
}
ONLY_MARKS = ("... !!! ???\n\n" * 3 + "1 2 3. 4 5 6.\n\n") * 20
WRAPPED = "The ship had left the harbour before the dawn and\nnobody on the quay had slept, so that it was noon\n"
WRAPPED = (WRAPPED * 6 + "when they heard of it. The sea was calm.\n\n") * 20
NOTHING_IS_LONG_ENOUGH = "--clean length --clean.min-characters 100000"
DONE = ("out", "out/*")

CASES = [
    *(
        Case(
            name=f"corpus: {corpus.name}",
            given=(write(corpus.file, corpus.content),),
            command=f"megabert-data build --input {corpus.file} {corpus.flags} {FLAGS}",
            code=corpus.code,
            says=(corpus.says,) if corpus.says else (),
            leaves=DONE,  # the units that were read are kept for the next try
            quick=corpus.quick,
        )
        for corpus in (*REFUSED, *TAKEN)
    ),
    *(
        Case(
            name=f"vocabulary of: {corpus.name}",
            given=(write(corpus.file, corpus.content),),
            command=f"megabert-data vocab --input {corpus.file} {corpus.flags} --output out --vocab-size 300",
            code=(0, 3) if corpus.name in ("one document", "one word") else corpus.code,
            leaves=DONE,
        )
        for corpus in REFUSED
    ),
    *(
        Case(
            name=f"hard-wrapped text: {verb}",
            given=(write("a.txt", WRAPPED), write("b.txt", WRAPPED.replace("ship", "boat"))),
            command=f"megabert-data {command}",
            code=(0, 3),
            says=("the lines look wrapped", "--format book"),
            leaves=DONE,
            quick=verb == "dry run",
        )
        for verb, command in {
            "build": f"build --input '*.txt' {FLAGS}",
            "vocabulary": "vocab --input '*.txt' --output out --vocab-size 300",
            "dry run": "build --input '*.txt' --output out --dry-run",
        }.items()
    ),
    *(
        Case(
            name=f"language model: {name}",
            given=(write("a.txt", TEXT), *(() if content is None else (write("lid.bin", content),))),
            command=f"megabert-data build --input a.txt {LANGUAGES} {FLAGS}",
            says=("language_model=lid.bin", says),
            quick=name == "cut",
        )
        for name, (content, says) in UNFIT_MODELS.items()
    ),
    Case(
        name="languages of a text without letters",
        given=(write("a.txt", ONLY_MARKS),),
        command=f"megabert-data build --input a.txt --language auto {FLAGS}",
        code=(0, 3),
        leaves=DONE,
    ),
    Case(
        name="languages of a text of which nothing is left",
        given=(write("a.txt", TEXT),),
        command=f"megabert-data build --input a.txt --language auto {NOTHING_IS_LONG_ENOUGH} {FLAGS}",
        says=("The corpus is empty", "a.txt"),
        leaves=DONE,
        quick=True,
    ),
    Case(
        name="the input is also the output",
        given=(copy("text.jsonl"),),
        command="megabert-data build --input text.jsonl --output text.jsonl --vocab-size 300 --lengths 32",
        says=("text.jsonl",),
    ),
]
