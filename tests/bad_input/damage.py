"""Damage to every file that we write or read, with what reads it, one after the other in one process.

A mutation changes one file. *As it is*, hashes have to notice it: it is refused, or nothing comes of it. *Refitted*,
all hashes and sizes that vouch for the file are made to fit, so that the damage reaches the reader, which may then
refuse it or believe it, and does not crash, hang or show a traceback.

The module is run by `forked.server`, with what to read as its arguments; it prints a line of JSON for each mutation.
"""

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bad_input import damage_readers as readers
from bad_input.damage_readers import words
from bad_input.fuzz import BYTES, STRUCTURE, Mutation
from bad_input.material import COMMANDS, run_flags
from forked.server import forget

from data_prep.execution.build_state import STATE_NAME, BuildState
from data_prep.execution.changes import PLAN_NAME
from megabert.foundation import json_files
from megabert.foundation.errors import DataError
from megabert.settings.command_line.failures import as_user_error

REFUSED, SAME, OTHER = "refused", "same result", "another result"
NUMBERS = (0, 1, -1, 2, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, -0x80000000, 1 << 40, -(1 << 62))


def number(content: bytes, chance: random.Random) -> bytes:
    """Write another number where one may be stored: an offset, a length, an id."""
    width = chance.choice([2, 4, 8])
    place = chance.randrange(max(1, len(content) // width)) * width
    value = chance.choice(NUMBERS) & ((1 << 8 * width) - 1)
    return content[:place] + value.to_bytes(width, "little") + content[place + width :]


def nudge(content: bytes, chance: random.Random) -> bytes:
    """Add or take a little where a number may be stored."""
    place = chance.randrange(max(1, len(content) // 4)) * 4
    near = int.from_bytes(content[place : place + 4], "little") + chance.choice([-8, -1, 1, 2, 8, 64])
    return content[:place] + (near & 0xFFFFFFFF).to_bytes(4, "little") + content[place + 4 :]


class Target(NamedTuple):
    """Files of one kind, and what reads them."""

    name: str
    files: str
    """Pattern of the files, in the folder of the material."""
    read: Callable[[Path], Any]
    """Reads them; returns what came of it, raises an error that a user understands."""
    refit: Callable[[Path], None] | None = None
    """Makes hashes fit what the folder holds now; None where nothing vouches for the files while they are read."""
    context: Callable[[BuildState], str] | None = None
    """What a sealed text belongs to: then the text is mutated, and the seal is fitted."""

    def mutation(self, index: int, path: Path) -> Mutation:
        """Return the kind that has its turn."""
        is_binary = path.suffix in (".arrow", ".npy", ".safetensors")
        kinds = (number, nudge, number, *BYTES) if is_binary else BYTES + STRUCTURE if ".json" in path.suffix else BYTES
        return kinds[index % len(kinds)]


INSTANCES, WORK = "build/instances/32", "unfinished/work"
TARGETS = (
    Target("shards, verified", f"{INSTANCES}/*.arrow", readers.verify, readers.fit_manifests),
    Target("shards, trained on", f"{INSTANCES}/*.arrow", readers.train, readers.fit_manifests),
    Target("shards, shown", f"{INSTANCES}/train-00000-00.arrow", readers.show),
    Target("shards, continued", f"{INSTANCES}/*.arrow", readers.build_again),
    Target("lengths, verified", f"{INSTANCES}/*.npy", readers.verify),
    Target("lengths, trained on", f"{INSTANCES}/*.npy", readers.train),
    Target("manifest of shards, verified", f"{INSTANCES}/manifest.json", readers.verify),
    Target("manifest of shards, trained on", f"{INSTANCES}/manifest.json", readers.train),
    Target("manifest of shards, continued", f"{INSTANCES}/manifest.json", readers.build_again),
    Target("documents, verified", "build/documents/*.arrow", readers.verify),
    Target("documents, continued", "build/documents/*.arrow", readers.build_again, readers.fit_records),
    Target("index of documents, verified", "build/documents/*.npy", readers.verify),
    Target("index of documents, continued", "build/documents/*.npy", readers.build_again),
    Target("plan", f"build/{PLAN_NAME}", readers.build_again, context=lambda state: state.context("plan")),
    Target("state", f"build/{STATE_NAME}", readers.build_again, context=lambda state: STATE_NAME),
    *(
        Target(f"records of {name}", f"build/work/records/{name}.jsonl", readers.build_again, None,
               lambda state, name=name: state.context(name))
        for name in ("documents", "instances-32", "tokenizer")
    ),
    Target("extracted text", f"{WORK}/extract/*.arrow", readers.tokenized),
    Target("counted words", f"{WORK}/words/*.arrow", words),
    Target("tokens", f"{WORK}/tokens/*.arrow", readers.token_ranges("tokens")),
    Target("merged chunks", f"{WORK}/chunks/*.arrow", readers.token_ranges("chunks")),
    Target("hashes of paragraphs", f"{WORK}/paragraphs/*.npy", readers.owners),
)  # fmt: skip
BUILD = "megabert-data build --input {} --output out --workers 1 --vocab-size 300 --lengths 32 --dupe-factor 1 "
BUILD += "--validation-share 0 --objective none"
FILL_MASK = "megabert fill-mask --model hf 'the [MASK] ship'"
DRY_RUN = f"megabert pretrain {run_flags(recipe='recipe.yaml')} --run-dir new --dry-run"
EVALUATE = "megabert evaluate --model tuned/seed_42/model --data {} --device cpu"
LABELS = ("labels.tsv", "labels.jsonl", "labels.parquet")
TEXTS = ("text.txt", "text.jsonl", "text.txt.gz", "text.parquet", "text.arrow", "wiki.xml --format wikipedia")
COMMAND_TARGETS = (
    Target("checkpoint", "run/checkpoints/step_00000006/*", readers.export, readers.fit_checkpoints),
    Target("latest checkpoint", "run/checkpoints/latest", readers.export),
    Target("run folder", "run/*.*", readers.report),
    Target("run folder, started", "run/*.json", readers.start),
    Target("tokenizer of shards", "build/instances/32/tokenizer/tokenizer.json", readers.start),
    Target("recipe", "recipe.yaml", readers.reads(DRY_RUN)),
    *(Target(f"model, {name}", f"hf/{name}", readers.reads(FILL_MASK))
      for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")),
    *(Target(f"fine-tuning, {name}", f"tuned/{name}", readers.reads(COMMANDS["tuned"]))
      for name in ("results.json", "finetune.json")),
    *(Target(f"labels, {file}", file, readers.reads(EVALUATE.format(file))) for file in LABELS),
    *(Target(f"text, {words}", words.split()[0], readers.reads(BUILD.format(words))) for words in TEXTS),
)  # fmt: skip
"""Targets that need more than a build and are read by commands: a few hundred milliseconds each."""
MOST_S = 60
"""Seconds of the processor that reading one file may take."""


class Folder:
    """The material of a child, put back after each mutation."""

    def __init__(self, path: Path) -> None:
        """Remember all files."""
        self.path, self._known = path, set(path.rglob("*"))
        self._sound = {file: (file.read_bytes(), _stamp(file)) for file in path.rglob("*") if file.is_file()}

    def restore(self) -> None:
        """Undo whatever was written."""
        for new in sorted(set(self.path.rglob("*")) - self._known, reverse=True):
            new.rmdir() if new.is_dir() and not new.is_symlink() else new.unlink()
        for file, (content, stamp) in self._sound.items():
            if _stamp(file) != stamp:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                self._sound[file] = content, _stamp(file)


def _stamp(path: Path) -> tuple[int, int] | None:
    return (path.stat().st_size, path.stat().st_ctime_ns) if path.is_file() else None  # times of change are put back


def mutate(target: Target, index: int, seed: int, folder: Path) -> str:
    """Change a file of the target; return what was done, "" if nothing was."""
    chance = random.Random(f"{target.name} {index} {seed}")
    paths = sorted(path for path in folder.glob(target.files) if path.is_file() and path.stat().st_size)
    path = chance.choice(paths)
    kind, before = target.mutation(index, path), path.read_bytes()
    is_refitted = bool(index // 2 % 2) and (target.refit is not None or target.context is not None)
    status = path.stat()
    try:
        if is_refitted and target.context:
            after = _sealed_again(before, kind, chance, target.context(readers._state_of(folder)))
        else:
            after = kind(before, chance)
    except ValueError:  # no JSON to change the structure of
        return ""
    path.write_bytes(after)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    if is_refitted and target.refit:
        try:
            target.refit(folder)
        except (ValueError, KeyError, TypeError, AttributeError, OSError):  # what is fitted was damaged beyond that
            return ""
    what = f"{path.relative_to(folder)}, {kind.__name__}{', refitted' if is_refitted else ''}"
    return what if after != before else ""


def _sealed_again(content: bytes, kind: Mutation, chance: random.Random, context: str) -> bytes:
    """Change one sealed text of a file, and fit its seal."""
    lines = content.splitlines() if content.count(json_files._BEGIN) > 1 else [content]
    place = chance.choice([place for place, line in enumerate(lines) if line])
    rest = kind(b"{" + lines[place][json_files.START :], chance)[1:].rstrip(b"\n")
    lines[place] = json_files._BEGIN + json_files._digest(rest, context) + json_files._END + rest
    return b"\n".join(lines) + b"\n"


def outcomes(target: Target, indices: range, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what came of each mutation, and what is wrong with that."""
    own = Folder(folder)
    expected = target.read(folder)
    for index in indices:
        own.restore()
        forget()
        what, outcome, problem, began = mutate(target, index, seed, folder), "", "", time.process_time()
        if what:
            try:
                outcome = SAME if target.read(folder) == expected else OTHER
                vouched = target.refit or target.context or "continued" in target.name
                if outcome == OTHER and vouched and "refitted" not in what:
                    problem = "accepted with another result, though hashes do not fit"
            except readers.Refused:
                outcome = REFUSED
            except BaseException as error:
                outcome, known = REFUSED, as_user_error(error)
                if known is None or isinstance(error, MemoryError):
                    problem = "".join(traceback.format_exception(error))[-1500:]
        if time.process_time() - began > MOST_S:
            problem = f"took more than {MOST_S} s"
        yield {"index": index, "what": what, "outcome": outcome, "problem": problem}


def prepare(folder: Path) -> None:
    """Begin a build with all rules, and leave it before it deletes what steps 1 to 4 left."""
    from data_prep.config import build as config
    from data_prep.execution.executors import Executor
    from data_prep.pipeline import build_shards
    from data_prep.steps import step5_documents

    class Stopping(Executor):
        def run(self, function: Any, tasks: Any) -> Iterator[tuple[int, Any]]:
            for index, task in enumerate(tasks):
                if getattr(task, "step", "") == "documents":
                    raise DataError("that is enough")
                yield index, function(task)

    step5_documents.MAX_FILES = 2
    clean = config.CleanConfig(rules=("length", "duplicate_paragraphs", "duplicate_documents"))
    source = config.SourceConfig(input=str(folder / "text.jsonl"))
    wanted = config.BuildConfig(
        sources=(source,), clean=clean, vocab_size=400, lengths=(32,), validation_share=0.2, chunk_mib=0.02
    )
    try:
        build_shards(wanted, folder / "unfinished", Stopping())
    except DataError:
        return
    raise AssertionError("the build was not stopped")


def main(words: list[str]) -> int:
    """Prepare the material, or read mutations of it: TARGET SEED FIRST LAST."""
    folder = Path.cwd()
    if words == ["prepare"]:
        prepare(folder)
        return 0
    name, seed, first, last = words
    (target,) = (target for target in (*TARGETS, *COMMAND_TARGETS) if target.name == name)
    (folder / "scratch").mkdir(exist_ok=True)
    lines = os.fdopen(os.dup(1), "w")
    for outcome in outcomes(target, range(int(first), int(last)), int(seed), folder):
        print(json.dumps(outcome), file=lines, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
