"""Paths: too long, not UTF-8, of the wrong kind, devices, links, without permission."""

import os
import stat
from pathlib import Path

from bad_input.given import copy, link, make, write
from bad_input.harness import Case
from bad_input.material import run_flags


def device(folder: Path, minor: int) -> None:
    """Make a device as /dev has them (3: null, 7: full), or a pipe where that takes rights that the user has not.

    Never the machine's own: a program that replaces it by a file breaks the machine.
    """
    try:
        os.mknod(folder / "device", stat.S_IFCHR | 0o666, os.makedev(1, minor))
    except PermissionError:
        os.mkfifo(folder / "device")


LONG = "x" * 300
DEEP = "/".join(["y" * 200] * 30)

FINETUNE = "megabert finetune classification --model hf --data labels.tsv --device cpu"
EVALUATE = "megabert evaluate --model tuned/seed_42/model --data labels.tsv"
# what is written: material, command with OUT in place of the path, exit codes
OUTPUTS = {
    "build": (("text.jsonl",), "megabert-data build --input text.jsonl --output OUT --vocab-size 300 --lengths 32"),
    "vocab": (("text.jsonl",), "megabert-data vocab --input text.jsonl --output OUT --vocab-size 300"),
    "pretrain": (("build",), f"megabert pretrain {run_flags()} --run-dir OUT"),
    "export": (("run", "build"), "megabert export run --to OUT"),
    "finetune": (("hf", "labels.tsv"), f"{FINETUNE} --output-dir OUT --epochs 1"),
    "attention": (("hf",), "megabert attention --model hf --output OUT text"),
    "embed": (("hf", "lines.txt"), "megabert embed lines.txt --model hf --output OUT"),
    "report": (("run", "build"), "megabert report run --html OUT"),
    "predictions": (("tuned", "labels.tsv"), f"{EVALUATE} --predictions OUT"),
}
FOLDERS = {"build", "vocab", "pretrain", "export", "finetune"}
BAD_PATHS = {
    "a name too long": (LONG, ()),
    "a path too long": (DEEP, ()),
    "a device": ("device", (make(lambda folder: device(folder, minor=3)),)),
    "below a file": ("plain/inside", (write("plain", "text"),)),
    "a full device": ("device", (make(lambda folder: device(folder, minor=7)),)),
    "a loop of links": ("loop", (link("loop", "loop"),)),
    "empty": ("''", ()),
    "with a null byte": ("/proc/self/nothing/x", ()),
}

PRETRAIN, NEW = f"megabert pretrain {run_flags()} --run-dir new", "--output-dir new --device cpu"
# what is read: command with IN in place of the path
INPUTS = {
    "build --input": (("text.jsonl",), "megabert-data build --input IN --output out --vocab-size 300 --lengths 32", 3),
    "vocab --input": (("text.jsonl",), "megabert-data vocab --input IN --output out --vocab-size 300", 3),
    "verify": ((), "megabert-data verify IN", 3),
    "stats": ((), "megabert-data stats IN", 3),
    "peek": ((), "megabert-data peek IN:0", 3),
    "data.path": ((), PRETRAIN.replace("--data.path build", "--data.path IN"), (2, 3)),
    "recipe": ((), f"{PRETRAIN} --recipe IN", 2),
    "engine": (("build",), f"{PRETRAIN} --engine IN", 2),
    "init-from": (("build",), f"{PRETRAIN} --init-from IN", (2, 3, 4)),
    "export": ((), "megabert export IN --to out", (2, 3, 4)),
    "report": ((), "megabert report IN", (2, 3, 4)),
    "watch": ((), "megabert watch IN --once", (2, 3, 4)),
    "compare": (("run",), "megabert compare run IN", (2, 3, 4)),
    "fill-mask": ((), "megabert fill-mask --model IN 'a [MASK]'", (2, 3, 4)),
    "similar": ((), "megabert similar --model IN ship", (2, 3, 4)),
    "embed": (("hf",), "megabert embed IN --model hf", (2, 3, 4)),
    "attention": ((), "megabert attention --model IN --output page.html text", (2, 3, 4)),
    "finetune --data": (("hf",), f"megabert finetune sst2 --model hf --data IN {NEW}", (2, 3)),
    "finetune --model": (("labels.tsv",), f"megabert finetune sst2 --model IN --data labels.tsv {NEW}", (2, 3, 4)),
    "evaluate --model": (("labels.tsv",), "megabert evaluate --model IN --data labels.tsv", (2, 3, 4)),
}
BAD_INPUTS = {
    "a name too long": (LONG, ()),
    "a loop of links": ("loop", (link("loop", "loop"),)),
    "a link to nothing": ("dangling", (link("dangling", "gone"),)),
    "an empty folder": ("empty", (make(lambda folder: (folder / "empty").mkdir()),)),
    "an empty file": ("empty.txt", (write("empty.txt", ""),)),
    "binary": ("noise.bin", (write("noise.bin", bytes(range(256)) * 64),)),
    "a pipe without a writer": ("pipe", (make(lambda folder: os.mkfifo(folder / "pipe")),)),
}
# Lines are read once and in order, so a pipe is as good as a file; its writer is waited for, as by every program.
SKIPPED = {("embed", "a pipe without a writer")}


def _precious(folder: Path) -> None:
    """Make a folder that is named as our temporaries are."""
    for name in (".mine.tmp", ".out.tmp", ".page.html.tmp"):
        (folder / name).mkdir()
        (folder / name / "precious").write_text("kept")


CASES = [
    Case(
        name="output of attention: foreign folders are named as temporaries",
        given=(copy("hf"), make(_precious)),
        command="megabert attention --model hf --output page.html text",
        code=0,
        leaves=("page.html",),
        quick=True,
    ),
    *(
        Case(
            name=f"output of {name}: {kind}",
            given=(copy(*needs), *given),
            command=command.replace("OUT", path),
            code=(2, 3, 4),
            leaves=("run/loss.png", "run/eval_*") if name == "report" else (),
        )
        for name, (needs, command) in OUTPUTS.items()
        for kind, (path, given) in BAD_PATHS.items()
        if not (name == "predictions" and path in ("device", "loop"))  # a stem: .jsonl is added
    ),
    *(
        Case(
            name=f"output of {name}: a file is there",
            given=(copy(*needs), write("there", "precious")),
            command=command.replace("OUT", "there"),
            code=(2, 3, 4),
        )
        for name, (needs, command) in OUTPUTS.items()
        if name in FOLDERS
    ),
    *(
        Case(
            name=f"output of {name}: a folder is there",
            given=(copy(*needs), make(lambda folder: (folder / "there.html").mkdir())),
            command=command.replace("OUT", "there.html"),
            code=(2, 3, 4),
            leaves=("run/loss.png", "run/eval_*") if name == "report" else (),
        )
        for name, (needs, command) in OUTPUTS.items()
        if name not in FOLDERS and name != "predictions"
    ),
    *(
        Case(
            name=f"input of {name}: {kind}",
            given=(copy(*needs), *given),
            command=command.replace("IN", path),
            code=code,
            quick=kind == "a loop of links" and name == "fill-mask",
        )
        for name, (needs, command, code) in INPUTS.items()
        for kind, (path, given) in BAD_INPUTS.items()
        if (name, kind) not in SKIPPED
    ),
]
