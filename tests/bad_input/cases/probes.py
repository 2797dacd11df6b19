"""Sentences and minimal pairs that cannot be scored."""

import os

from bad_input.given import copy, make, write
from bad_input.harness import Case
from bad_input.material import run_flags

GOOD = '{"sentence_good": "the ship", "sentence_bad": "ship the"}\n'
SAME = '{"sentence_good": "a", "sentence_bad": "a "}\n'
HALF = '{"sentence_good": "a ship"}\n'
TABLE = "good\tbad\nthe ship\tship the\n"
FOLDER = make(lambda folder: (folder / "own.jsonl").mkdir())
QUICK = {"a file without text"}

# what is scored, what is wrong with it, its content, its name, what the message names
SCORED = (
    ("pll", "a file without text", " \n\n", "lines.txt", ("lines.txt", "has no text")),
    ("pll", "a file that is not UTF-8", b"a ship\n\xff\xfe\n", "lines.txt", ("lines.txt", "not UTF-8")),
    (
        "pll",
        "JSON without the field",
        '{"body": "a ship"}\n',
        "lines.jsonl",
        ("lines.jsonl:1", "'body'", "--text-column"),
    ),
    (
        "pll",
        "a line of two megabytes",
        "x" * 2_000_000 + "\nshort\n",
        "lines.txt",
        ("lines.txt:1", "Cut it into sentences"),
    ),
    ("pairs", "a set that is not", None, "frisian", ("frisian", "english, korean")),
    ("pairs", "a file with the name of a set", GOOD, "english", ("english", "whole path")),
    ("pairs", "a pair without its bad sentence", GOOD + HALF, "own.jsonl", ("own.jsonl:2", "sentence_bad", "BLiMP")),
    ("pairs", "two sentences that are the same", GOOD + SAME, "own.jsonl", ("own.jsonl:2", "the same")),
    ("pairs", "a table in place of JSON Lines", TABLE, "own.jsonl", ("own.jsonl:1", "BLiMP")),
    ("pairs", "an empty file", "", "own.jsonl", ("own.jsonl", "has no pairs")),
)

# what is wrong with the probes of a run, what makes them, their names, exit code, what the message names
PROBES = (
    ("probes that are not there", (), "frisian", 3, ("frisian", "english, korean")),
    ("an empty file of probes", (write("own.jsonl", ""),), "own.jsonl", 3, ("own.jsonl", "has no pairs")),
    (
        *("two files of probes of one name", (write("own.jsonl", GOOD), write("more/own.jsonl", GOOD))),
        *("own.jsonl more/own.jsonl", 2, ("own.jsonl and more/own.jsonl", "probe/own")),
    ),
    ("probes that are no pairs", (write("own.jsonl", "{}\n"),), "own.jsonl", 3, ("own.jsonl:1", "BLiMP")),
    ("probes of binary data", (write("own.jsonl", b"\xff\xfe"),), "own.jsonl", 3, ("own.jsonl", "UTF-8")),
    ("a folder of probes", (FOLDER,), "own.jsonl", (2, 3), ("own",)),
)

# what is wrong, what makes it, the command, exit code, what the message names
OTHERS = (
    (
        "pll: a pipe",
        make(lambda folder: os.mkfifo(folder / "lines.txt")),
        "pll lines.txt",
        (2, 3),
        ("lines.txt", "pipe"),
    ),
    (
        *("pll: scores in the place of the sentences", write("lines.txt", "a ship\n")),
        *("pll lines.txt --output lines.txt", 2, ("lines.txt",)),
    ),
    ("pairs: a folder", FOLDER, "pairs own.jsonl", (2, 3), ("own.jsonl",)),
)

CASES = [
    *(
        Case(
            name=f"{verb}: {name}",
            given=(copy("hf"), *(() if content is None else (write(file, content),))),
            command=f"megabert {verb} {file} --model hf --device cpu",
            says=says,
            quick=name in QUICK,
        )
        for verb, name, content, file, says in SCORED
    ),
    *(
        Case(
            name=name,
            given=(copy("hf"), step),
            command=f"megabert {words} --model hf --device cpu",
            code=code,
            says=says,
        )
        for name, step, words, code, says in OTHERS
    ),
    *(
        Case(
            name=f"pretrain: {name}",
            given=(copy("build"), *given),
            command=f"megabert pretrain {run_flags()} --run-dir new --validation.probes {probes}",
            code=code,
            says=says,
        )
        for name, given, probes, code, says in PROBES
    ),
]
