"""Sentences and minimal pairs that cannot be scored."""

import os

from bad_input.given import copy, make, write
from bad_input.harness import Case
from bad_input.material import run_flags

GOOD = '{"sentence_good": "the ship", "sentence_bad": "ship the"}\n'
PAIRS = "megabert pairs own.jsonl --model hf --device cpu"
PLL = "megabert pll lines.txt --model hf --device cpu"

CASES = [
    Case(
        name="pll: a file without text",
        given=(copy("hf"), write("lines.txt", " \n\n")),
        command=PLL,
        says=("lines.txt", "has no text"),
        quick=True,
    ),
    Case(
        name="pll: a file that is not UTF-8",
        given=(copy("hf"), write("lines.txt", b"a ship\n\xff\xfe\n")),
        command=PLL,
        says=("lines.txt", "not UTF-8"),
    ),
    Case(
        name="pll: a pipe",
        given=(copy("hf"), make(lambda folder: os.mkfifo(folder / "lines.txt"))),
        command=PLL,
        code=(2, 3),
        says=("lines.txt", "pipe"),
    ),
    Case(
        name="pll: JSON without the field",
        given=(copy("hf"), write("lines.jsonl", '{"body": "a ship"}\n')),
        command="megabert pll lines.jsonl --model hf --device cpu",
        says=("lines.jsonl:1", "'body'", "--text-column"),
    ),
    Case(
        name="pll: a line of two megabytes",
        given=(copy("hf"), write("lines.txt", "x" * 2_000_000 + "\nshort\n")),
        command=PLL,
        says=("lines.txt:1", "Cut it into sentences"),
    ),
    Case(
        name="pll: scores in the place of the sentences",
        given=(copy("hf"), write("lines.txt", "a ship\n")),
        command=f"{PLL} --output lines.txt",
        code=2,
        says=("lines.txt",),
    ),
    Case(
        name="pairs: a set that is not",
        given=(copy("hf"),),
        command="megabert pairs frisian --model hf --device cpu",
        says=("frisian", "english, korean"),
        quick=True,
    ),
    Case(
        name="pairs: a file with the name of a set",
        given=(copy("hf"), write("english", GOOD)),
        command="megabert pairs english --model hf --device cpu",
        says=("english", "whole path"),
    ),
    Case(
        name="pairs: a pair without its bad sentence",
        given=(copy("hf"), write("own.jsonl", GOOD + '{"sentence_good": "a ship"}\n')),
        command=PAIRS,
        says=("own.jsonl:2", "sentence_bad", "BLiMP"),
    ),
    Case(
        name="pairs: two sentences that are the same",
        given=(copy("hf"), write("own.jsonl", GOOD + '{"sentence_good": "a", "sentence_bad": "a "}\n')),
        command=PAIRS,
        says=("own.jsonl:2", "the same"),
    ),
    Case(
        name="pairs: a table in place of JSON Lines",
        given=(copy("hf"), write("own.jsonl", "good\tbad\nthe ship\tship the\n")),
        command=PAIRS,
        says=("own.jsonl:1", "BLiMP"),
    ),
    Case(
        name="pairs: an empty file",
        given=(copy("hf"), write("own.jsonl", "")),
        command=PAIRS,
        says=("own.jsonl", "has no pairs"),
    ),
    *(
        Case(
            name=f"pretrain: {name}",
            given=(copy("build"), *given),
            command=f"megabert pretrain {run_flags()} --run-dir new --validation.probes {probes}",
            code=code,
            says=says,
        )
        for name, given, probes, code, says in (
            ("probes that are not there", (), "frisian", 3, ("frisian", "english, korean")),
            ("an empty file of probes", (write("own.jsonl", ""),), "own.jsonl", 3, ("own.jsonl", "has no pairs")),
            (
                "two files of probes of one name",
                (write("own.jsonl", GOOD), write("more/own.jsonl", GOOD)),
                "own.jsonl more/own.jsonl",
                2,
                ("own.jsonl and more/own.jsonl", "probe/own"),
            ),
            ("probes that are no pairs", (write("own.jsonl", "{}\n"),), "own.jsonl", 3, ("own.jsonl:1", "BLiMP")),
            ("probes of binary data", (write("own.jsonl", b"\xff\xfe"),), "own.jsonl", 3, ("own.jsonl", "UTF-8")),
            (
                "a folder of probes",
                (make(lambda folder: (folder / "own.jsonl").mkdir()),),
                "own.jsonl",
                (2, 3),
                ("own",),
            ),
        )
    ),
    Case(
        name="pairs: a folder",
        given=(copy("hf"), make(lambda folder: (folder / "own.jsonl").mkdir())),
        command=PAIRS,
        code=(2, 3),
        says=("own.jsonl",),
    ),
]
