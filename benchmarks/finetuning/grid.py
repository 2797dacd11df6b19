"""A grid of four labelled sets: killed twice and continued, equal to single runs, and its time on two processes.

    python -m benchmarks.finetuning.grid --data DATA --model MODEL --out OUT [--parts killed one two single]

DATA is what data.py wrote. Parts: `killed` ends a grid with two processes by SIGKILL after a third and after two thirds
of its cells and continues it; `one` and `two` run the same grid on one and on two processes; `single` runs every
setting by hand, as a user would without a grid; at the end everything that is there is compared. One thread per cell
throughout.
"""

import argparse
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SETS = ("snli", "classification=news", "classification=film", "regression=film_rating")
CELLS = 16
ROWS = {"train": 320, "dev": 120, "test": 120}
RATES = ("1e-4", "3e-4")
SHARED = "--epochs 1 --seeds 2 --max-seq-length 64 --global-batch-size 8 --device cpu"


def cut(data: Path, out: Path) -> None:
    """Write the first rows of each set; of SNLI's official test set, one part chooses and one is the test set."""
    for name in (one.rpartition("=")[2] for one in SETS):
        for path in sorted((data / name).glob("*.*")):
            lines = path.read_text().splitlines(keepends=True)
            head = 1 if path.suffix == ".tsv" else 0
            parts = {"dev": 0, "test": ROWS["dev"]} if path.stem == "test" else {path.stem: 0}
            for stem, start in parts.items():
                own = [*lines[:head], *lines[head + start : head + start + ROWS[stem]]]
                (out / name).mkdir(parents=True, exist_ok=True)
                (out / name / f"{stem}{path.suffix}").write_text("".join(own))


def command(options: argparse.Namespace, out: Path, processes: int) -> list[str]:
    """Return the command of the grid."""
    start = [sys.executable, "-m", "megabert", "finetune", *SETS]
    places = ["--data", str(options.out / "data"), "--model", str(options.model), "--output-dir", str(out)]
    return [*start, *places, "--processes", str(processes), "--learning-rates", *RATES, *SHARED.split()]


def finished(out: Path) -> list[Path]:
    """Return the results of the cells that have finished."""
    return sorted(out.glob("*/*/seed_*/result.json"))


def timed(words: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds by the clock and of the processors, children included."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def killed(options: argparse.Namespace) -> None:
    """Run the grid, killing it twice."""
    out = options.out / "killed"
    for share in (1 / 3, 2 / 3):
        process = subprocess.Popen(command(options, out, 2))
        while len(finished(out)) < share * CELLS and process.poll() is None:
            time.sleep(0.2)
        kept = {path: path.stat().st_mtime_ns for path in finished(out)}
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(1.0)
        left = subprocess.run(["pgrep", "-f", f"output-dir {out}/"], capture_output=True, text=True, check=False).stdout
        begun = sum(1 for path in out.glob("*/*/finetune.json") if not list(path.parent.glob("seed_*/result.json")))
        print(f"SIGKILL: {len(kept)} cells had finished, {begun} were begun, {len(left.split())} processes are left")
    timed(command(options, out, 2))
    same = all(path.stat().st_mtime_ns == written for path, written in kept.items())
    print(f"continued: {len(finished(out))} cells; those finished before the second kill are untouched: {same}")


def single(options: argparse.Namespace) -> None:
    """Run each set and rate by hand; both seeds one after the other in one process."""
    for one, rate in itertools.product(SETS, RATES):
        task, _, name = one.rpartition("=")
        folder = options.out / "single" / name / f"rate_{float(rate):.15g}-epochs_1"
        shutil.rmtree(folder, ignore_errors=True)
        places = ["--data", str(options.out / "data" / name), "--model", str(options.model)]
        start = [sys.executable, "-m", "megabert", "finetune", task or name]
        timed([*start, *places, "--output-dir", str(folder), "--learning-rate", rate, *SHARED.split()])


def content(seed: Path) -> tuple[Any, ...]:
    """Return what a seed's training came to: losses, scores, predictions and weights."""
    rows = [json.loads(line) for line in (seed / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    scores = json.loads((seed / "result.json").read_text())["metrics"]
    predictions = [path.read_bytes() for path in sorted(seed.glob("predictions_*"))]
    return losses, scores, predictions, (seed / "model" / "model.safetensors").read_bytes()


def compare(options: argparse.Namespace) -> None:
    """Print how many cells are equal bit for bit."""
    mine = {
        path.parent.relative_to(options.out / "killed"): content(path.parent)
        for path in finished(options.out / "killed")
    }
    for part in ("one", "two"):
        others = finished(options.out / part)
        equal = sum(content(path.parent) == mine.get(path.parent.relative_to(options.out / part)) for path in others)
        print(f"killed and continued against {part}: {equal} of {len(others)} cells equal bit for bit")
    singles = sorted((options.out / "single").glob("*/*/seed_*/result.json"))
    equal = 0
    for path in singles:
        name, setting, seed = path.parts[-4:-1]
        equal += content(path.parent) == mine.get(Path(name) / f"{setting}-{seed}" / seed)
    print(f"killed and continued against single runs: {equal} of {len(singles)} cells equal bit for bit")


def main() -> None:
    """Run the parts, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "model", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--parts", nargs="*", default=["killed", "one", "two", "single"])
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cut(options.data, options.out / "data")
    for part in options.parts:
        if part in ("one", "two"):
            processes = 1 + (part == "two")
            wall_s, cpu_s = timed(command(options, options.out / part, processes))
            print(f"{processes} process(es): {wall_s:.0f} s by the clock, {cpu_s:.0f} of the processors")
        else:
            {"killed": killed, "single": single}[part](options)
        sys.stdout.flush()
    compare(options)


if __name__ == "__main__":
    main()
