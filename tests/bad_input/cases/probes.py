"""Sentences and minimal pairs that cannot be scored."""

import os

from bad_input.given import copy, make, write
from bad_input.harness import Case
from bad_input.material import run_flags

GOOD = '{"sentence_good": "the ship", "sentence_bad": "ship the"}\n'
LONG = "x" * 2_000_000 + "\nshort\n"
TABLE = "good\tbad\nthe ship\tship the\n"
HF = "--model hf --device cpu"
PIPE = make(lambda folder: os.mkfifo(folder / "lines.txt"))
FOLDER = make(lambda folder: (folder / "own.jsonl").mkdir())
QUICK = {"a file without text"}

# what is scored, what is wrong with it, its content, its name, what the message names
SCORED = (
    ("pll", "a file without text", " \n\n", "lines.txt", ("lines.txt", "has no text")),
    ("pll", "a line of two megabytes", LONG, "lines.txt", ("lines.txt:1", "Cut it into sentences")),
    ("pairs", "a table in place of JSON Lines", TABLE, "own.jsonl", ("own.jsonl:1", "BLiMP")),
)

TWO = ("own.jsonl", "more/own.jsonl")
BOTH = tuple(write(name, GOOD) for name in TWO)
# what is wrong with the probes of a run, what makes them, their names, exit code, what the message names
PROBES = (
    ("two files of probes of one name", BOTH, " ".join(TWO), 2, (" and ".join(TWO), "probe/own")),
    ("probes of binary data", (write("own.jsonl", b"\xff\xfe"),), "own.jsonl", 3, ("own.jsonl", "UTF-8")),
    ("a folder of probes", (FOLDER,), "own.jsonl", (2, 3), ("own",)),
)

# what is wrong, what makes it, the command, exit code, what the message names
OTHERS = (
    ("pll: a pipe", PIPE, "pll lines.txt", (2, 3), ("lines.txt", "pipe")),
    ("pairs: a folder", FOLDER, "pairs own.jsonl", (2, 3), ("own.jsonl",)),
)

CASES = [
    *(
        Case(
            name=f"{verb}: {name}",
            given=(copy("hf"), *(() if content is None else (write(file, content),))),
            command=f"megabert {verb} {file} {HF}",
            says=says,
            quick=name in QUICK,
        )
        for verb, name, content, file, says in SCORED
    ),
    *(
        Case(name=name, given=(copy("hf"), step), command=f"megabert {words} {HF}", code=code, says=says)
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
