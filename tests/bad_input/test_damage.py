"""No damage to a file is believed against its hash, nor ends in a traceback, a crash, a hang or too much memory."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_input.damage import COMMAND_TARGETS, TARGETS
from bad_input.harness import text_of
from bad_input.material import COMMANDS, write_texts
from forked.client import fork_server, request_of

SEED = int(os.environ.get("MEGABERT_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("MEGABERT_DAMAGE_COUNT", "900"))
"""Mutations of each target of a build; of those that commands read two thirds. 23 and 21 targets make 33,000."""
TOGETHER = 100
"""Mutations that one process reads, one after the other."""
BOUNDS = {"timeout_s": 900, "memory_bytes": 4 << 30}


def outputs_of(folder: Path) -> dict[str, Path]:
    """Return where the output of what runs in a folder goes: next to it."""
    return {name: folder.with_name(f"{folder.name}.{name}") for name in ("stdout", "stderr")}


def ask(module: str, words: list[str], folder: Path) -> tuple[dict[str, Any], str]:
    """Run a module in a folder; return what came of it, and its output."""
    outputs = outputs_of(folder)
    for path in outputs.values():
        path.unlink(missing_ok=True)
    listing = folder.with_name(f"{folder.name}.modules")
    request = request_of(module, words, listing, folder=folder, **outputs, **BOUNDS)
    (reply,) = fork_server().ask([request])
    return reply, text_of(outputs["stdout"])


def outcomes(target: str, count: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each mutation; one may end its process: it is named, and the rest is read in another one."""
    first = 0
    while first < count:
        last = min(first + TOGETHER, count)
        own = folder.with_name(f"{folder.name}-own")  # a process that dies leaves its damage
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(folder, own, symlinks=True)
        reply, text = ask("bad_input.damage", [target, str(SEED), str(first), str(last)], own)
        lines = [json.loads(line) for line in text.splitlines()]
        yield from lines
        first += len(lines)
        if first < last:
            how = reply["ended"] or f"exit code {reply['code']}: {text_of(outputs_of(own)['stderr'])[-600:]}"
            yield {"index": first, "what": "", "outcome": "died", "problem": f"ended its process: {how}"}
            first += 1


@pytest.fixture(scope="module")
def builds(tmp_path_factory) -> Path:
    """A small finished build, and an unfinished one with all that it would delete."""
    folder = tmp_path_factory.mktemp("builds")
    write_texts(folder)
    for module, words in (("data_prep", COMMANDS["build"].split()[1:]), ("bad_input.damage", ["prepare"])):
        reply, text = ask(module, words, folder)
        assert reply["code"] == 0, text + text_of(outputs_of(folder)["stderr"])
    return folder


def judge(target: str, count: int, folder: Path) -> None:
    """Read mutations of a target, count what came of them, and fail with what is wrong."""
    tally: Counter[str] = Counter()
    failures = []
    for outcome in outcomes(target, count, folder):
        tally[outcome["outcome"] or "unchanged"] += 1
        if outcome["problem"]:
            failures.append(f"number {outcome['index']}: {outcome['what']}: {outcome['problem']}")
    print(f"{target}: {count}, " + ", ".join(f"{n} {name}" for name, n in sorted(tally.items())) + f"; seed {SEED}")
    assert not failures, f"{len(failures)} of {count}\n" + "\n".join(failures[:10])


BUILD_TARGETS = [target.name for target in TARGETS]


@pytest.mark.parametrize("target", BUILD_TARGETS)
def test_damaged_file_of_a_build_is_refused_or_harmless(builds, target):
    judge(target, 4, builds)  # two as they are, two refitted


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("target", BUILD_TARGETS)
def test_many_damaged_files_of_a_build(builds, target):
    judge(target, COUNT, builds)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("target", [target.name for target in COMMAND_TARGETS])
def test_many_damaged_files_that_commands_read(material, target):
    judge(target, COUNT * 2 // 3, material)
