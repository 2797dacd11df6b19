"""Links and special files where we write and where we read: nothing elsewhere changes, and nobody waits."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

from bad_input.given import copy, make
from bad_input.harness import Case
from bad_input.material import COMMANDS, run_flags

RESUME = f"megabert pretrain {run_flags(**{'phases.1.steps': 3})} --run-dir run"
AGAIN = f"megabert pretrain {run_flags()} --run-dir run"
BUILD = COMMANDS["build"]
TUNED = COMMANDS["tuned"]
PRECIOUS = "precious"


def led_astray(path: str) -> Callable[[Path], None]:
    """Put a link to a precious file, or folder, in the place of one of ours; files elsewhere must not change."""

    def step(folder: Path) -> None:
        (folder / PRECIOUS).mkdir(exist_ok=True)
        (folder / PRECIOUS / "file").write_text("kept\n")
        place = folder / path
        is_folder = place.is_dir() or not place.suffix
        if place.is_dir() and not place.is_symlink():
            place.rename(folder / f"{PRECIOUS}/was {place.name}")
        else:
            place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(folder / PRECIOUS if is_folder else folder / PRECIOUS / "file")

    return step


# what is a link, command, what it needs, exit codes, what it says
LINKED = [
    ("v.npy", "megabert embed lines.txt --model hf --output v.npy", ("hf", "lines.txt"), 0, ()),
    ("v.parquet", "megabert embed lines.txt --model hf --output v.parquet", ("hf", "lines.txt"), 0, ()),
    ("page.html", "megabert attention 'the ship' --model hf --output page.html", ("hf",), 0, ()),
    ("run/loss.png", "megabert report run", ("run", "build"), 0, ()),
    ("page.html", "megabert report run --html page.html --png new.png", ("run", "build"), 0, ()),
    ("new.jsonl", "megabert evaluate --model tuned/seed_42/model --data labels.tsv --predictions new --device cpu",
     ("tuned", "labels.tsv"), 0, ()),
    ("run/config.yaml", RESUME, ("run", "build"), 2, ()),
    *((f"run/{name}", AGAIN, ("run", "build"), 0, ()) for name in ("status.json", "loss.png")),
    *((f"run/{name}", AGAIN, ("run", "build"), 3, ("is a link", "Remove it"))
      for name in ("logs", "heartbeats", "tb", "checkpoints", "tokenizer", "profile", ".lock", "logs/rank_000.log")),
    *((f"build/{name}", BUILD, ("build", "text.jsonl"), 3, ("is a link", "Remove it"))
      for name in ("work", "documents", "instances", "tokenizer", "instances/32", ".lock")),
    ("build/instances/32/train-00000-00.row_lengths.npy", BUILD, ("build", "text.jsonl"), 0, ()),
    ("build/instances/32/manifest.json", BUILD, ("build", "text.jsonl"), (0, 3), ()),
    ("build/build.json", BUILD, ("build", "text.jsonl"), 3, ()),
    *((f"tuned/{name}", TUNED, ("tuned", "hf", "labels.tsv"), 3, ("is a link", "Remove it"))
      for name in ("logs", "seed_42", "seed_42/model", ".lock")),
    ("tuned/results.json", TUNED, ("tuned", "hf", "labels.tsv"), 0, ()),
]  # fmt: skip

ITSELF = [
    ("a link to it", lambda folder: os.symlink("lines.txt", folder / "v.npy"), "v.npy"),
    ("a hard link of it", lambda folder: os.link(folder / "lines.txt", folder / "v.npy"), "v.npy"),
    ("a longer path to it", lambda folder: (folder / "lines.txt").rename(folder / "lines.npy"), "hf/../lines.npy"),
]


def special(name: str, kind: str) -> Callable[[Path], None]:
    """Put what is no regular file in a file's place."""

    def step(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if kind == "a pipe":
            os.mkfifo(path)
        elif kind == "a socket":
            here = os.getcwd()
            os.chdir(path.parent)  # the name of a socket is short
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
            os.chdir(here)
        elif kind == "a folder":
            path.mkdir()
        elif kind == "a sparse file of 1 TiB":
            path.touch()
            os.truncate(path, 1 << 40)
        else:
            path.symlink_to(kind)

    return step


KINDS = ("a pipe", "a socket", "a folder", "/dev/zero", "/dev/tty", "/proc/kmsg", "a sparse file of 1 TiB")
FILL_MASK = "megabert fill-mask --model hf 'the [MASK] ship'"
EVALUATE = "megabert evaluate --model tuned/seed_42/model --data {} --device cpu"
# file, command that reads it, what it needs: a few, since all files are opened in one way (test_files_elsewhere.py)
READ = [
    ("t.txt", "megabert embed t.txt --model hf --output v.npy", ("hf",)),
    ("hf/config.json", FILL_MASK, ("hf",)),
    ("hf/model.safetensors", FILL_MASK, ("hf",)),
    ("run/status.json", "megabert watch run --once", ("run",)),
    ("run/checkpoints/step_00000006/rank_00000.safetensors", "megabert export run --to new --checkpoint 6", ("run",)),
    ("build/instances/32/manifest.json", "megabert-data verify build/instances/32 --workers 1", ("build",)),
    ("build/instances/32/train-00000-00.arrow", "megabert-data peek build/instances/32/train-00000-00.arrow:0",
     ("build",)),
    ("build/instances/32/train-00000-00.arrow", "megabert-data verify build/instances/32 --workers 1", ("build",)),
    ("recipe.yaml", "megabert pretrain --recipe recipe.yaml --run-dir new --dry-run", ()),
    ("engine.json", f"megabert pretrain {run_flags(engine='engine.json')} --run-dir new --dry-run", ("build",)),
    ("x.tsv", EVALUATE.format("x.tsv"), ("tuned",)),
    ("x.parquet", EVALUATE.format("x.parquet"), ("tuned",)),
    ("x.txt", "megabert-data vocab --input x.txt --output new --vocab-size 400", ()),
    ("x.parquet", "megabert-data vocab --input x.parquet --output new --vocab-size 400", ()),
]  # fmt: skip
LARGE = ("x.txt", "t.txt", "x.jsonl", "x.tsv", "train-00000-00.arrow", "rank_00000.safetensors", "model.safetensors")
"""Files that may be of any size: one of 1 TiB takes its time."""

CASES = [
    *(
        Case(
            name=f"{command.split()[1]}: a link in the place of {path}" + (", --html" if "--html" in command else ""),
            given=(copy(*needs), make(led_astray(path))),
            command=command,
            code=code,
            says=says,
            leaves=("v.*", "page.html", "new.*", "run/*", "build/*", "tuned/*"),
            timeout_s=120,
            quick=path in ("v.npy", "run/logs", "build/work"),
        )
        for path, command, needs, code, says in LINKED
    ),
    *(
        Case(
            name=f"embed: the output is the input, by {name}",
            given=(copy("hf", "lines.txt"), make(how)),
            command=f"megabert embed {'lines.npy' if '/' in output else 'lines.txt'} --model hf --output {output}",
            code=2,
            says=("which this command reads",),
            quick=name == "a link to it",
        )
        for name, how, output in ITSELF
    ),
    Case(
        name="evaluate: predictions in the place of the data",
        given=(copy("tuned", "labels.jsonl"),),
        command="megabert evaluate --model tuned/seed_42/model --data labels.jsonl --predictions labels --device cpu",
        code=2,
        says=("labels.jsonl", "which this command reads"),
    ),
    Case(
        name="report: a page in the place of the metrics",
        given=(copy("run", "build"),),
        command="megabert report run --html run/metrics.jsonl",
        code=2,
        says=("metrics.jsonl", "which this command reads"),
    ),
    *(
        Case(
            name=f"{command.split()[1]}: {kind} in the place of {path}"
            + (f", {command.split()[0]}" if path == "x.parquet" else ""),
            given=(copy(*needs), make(special(path, kind))),
            command=command,
            code=(2, 3, 4),
            leaves=("new*",) if "--run-dir" in command else (),
            timeout_s=30,
            memory_bytes=2 << 30,
            quick=kind == "a pipe" and path in ("t.txt", "x.tsv"),
        )
        for path, command, needs in READ
        for kind in KINDS
        if not (kind == "a sparse file of 1 TiB" and Path(path).name in LARGE)
    ),
]
