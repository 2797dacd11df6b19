"""Whether the mean of several decays of one run is better than each of them on held-out text.

    python -m benchmarks.merges RUN --data DATA --at STEP [--seeds 1 2 3] [--checkpoints STEP ...] [--work FOLDER]

Forks RUN at STEP once per seed (the seed changes the order of the data, and dropout), trains each fork to its end on
one rank, and scores the forks, the mean of every two or more, and their mean with the best counted twice. --checkpoints
scores the mean of checkpoints of RUN itself. Losses are of the masked LM, in nats, on all held-out instances of the
longest and of the second longest shards in DATA, which all models see with the same masks.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import torch

from benchmarks.cells import ROOT, call
from megabert.downstream.export.sources import Source
from megabert.downstream.inspection.masked_lm import ScoringOptions, score_masked_lm
from megabert.downstream.publish.merging import MergePart, merge_parts, open_parts
from megabert.foundation.text_tables import render_table


def train_forks(options: argparse.Namespace) -> list[str]:
    """Train the forks that are not finished; return their folders."""
    folders = [options.work / f"{options.run.name}-{options.at}-seed-{seed}" for seed in options.seeds]
    for seed, folder in zip(options.seeds, folders, strict=True):
        fork = ("--fork", f"{options.run}@{options.at}", "--seed", seed, "--data.path", options.data)
        call("megabert", "pretrain", *fork, "--run-dir", folder, "--device", options.device)
    return [str(folder) for folder in folders]


def score(source: Source, shards: Sequence[Path], device: str) -> list[float]:
    """Return the held-out loss on each folder of shards."""
    options = [ScoringOptions(max_seq_length=int(folder.name)) for folder in shards]
    scores = [score_masked_lm(source, *pair, device=device) for pair in zip(shards, options, strict=True)]
    return [one.total.loss for one in scores]


def merges_of(forks: Sequence[MergePart], losses: dict[str, list[float]]) -> Iterator[tuple[str, list[MergePart]]]:
    """Yield the merges of forks: each subset of two or more alike, then all of them with the best counted twice."""
    names = [part.name for part in forks]
    label = {name: Path(name).name.rpartition("-")[2] for name in names}
    for count in range(2, len(names) + 1):
        for chosen in combinations(names, count):
            yield f"mean of {', '.join(label[name] for name in chosen)}", open_parts(chosen)
    best = min(names, key=lambda name: losses[name])
    title = f"mean of {', '.join(label.values())}, {label[best]} twice"
    yield title, open_parts(names, [1.0 + (name == best) for name in names])


def main() -> None:
    """Train, score and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="output of megabert-data build")
    parser.add_argument("--at", type=int, required=True, help="step of the common checkpoint")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--checkpoints", nargs="*", type=int, default=[], help="steps of RUN that are merged too")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "merges", help="folder of the forks")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    options.run, options.data = options.run.resolve(), options.data.resolve()
    torch.set_num_threads(1)
    lengths = sorted((options.data / "instances").iterdir(), key=lambda folder: -int(folder.name))[:2]

    losses: dict[str, list[float]] = {}
    rows = []

    def add(name: str, title: str, source: Source) -> None:
        losses[name] = score(source, lengths, options.device)
        rows.append((title, *(f"{loss:.4f}" for loss in losses[name])))

    forks = open_parts(train_forks(options))
    for part, seed in zip(forks, options.seeds, strict=True):
        add(part.name, f"fork with seed {seed}", part.source)
    for title, parts in merges_of(forks, losses):
        add(title, title, merge_parts(parts))
    if options.checkpoints:
        checkpoints = open_parts([f"{options.run}@{step}" for step in options.checkpoints])
        for part, step in zip(checkpoints, options.checkpoints, strict=True):
            add(part.name, f"step {step}", part.source)
        add("steps", f"mean of steps {', '.join(map(str, options.checkpoints))}", merge_parts(checkpoints))
    print(render_table(rows, headers=("model", *(f"at {folder.name}" for folder in lengths)), align="lrr"))


if __name__ == "__main__":
    main()
