"""What pre-training is worth: `megabert finetune` from a model of ours and from random weights of the same shape.

    python -m benchmarks.finetuning.from_scratch --data DATA --model RUN --out OUT --sizes film-2k snli-10k --seeds 3

DATA is what data.py wrote, RUN the run folder of a pre-training, such as small_english.yaml's. Both sides have the same
sets, order, dropout and settings; flags that are not listed go to both. The last weights are scored, none are chosen by
the evaluation set. A seed that has finished is kept: the same command continues.
"""

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from benchmarks.finetuning.compare import COMMON, SIZES, finetune, parser_of

STARTS = {"ours": (), "random": ("--random-weights", "true")}
SETTINGS = COMMON | {"learning_rate": "auto"}
"""Each side at the rate that fits it."""
EPOCHS = 2
"""Times those of compare.py: random weights need more."""


def run(size: str, start: str, options: argparse.Namespace, more: Sequence[str]) -> dict[str, Any]:
    """Fine-tune with all seeds, and return mean and deviation."""
    task, folder, fields = SIZES[size]
    out = options.out / size / start
    given = {"model": options.model, "data": options.data / folder, "output-dir": out, "seeds": options.seeds}
    settings = given | SETTINGS | fields | {"epochs": EPOCHS * fields["epochs"]}
    finetune(task, settings, [*STARTS[start], *more])
    return json.loads((out / "results.json").read_text())  # type: ignore[no-any-return]


def row(size: str, start: str, found: dict[str, Any]) -> str:
    """Return a line of the table: the first metric of the first set."""
    name, metrics = next(iter(found["mean"].items()))
    metric, mean = next(iter(metrics.items()))
    spread = found["deviation"][name][metric]
    return f"| {size} | {start} | {len(found['seeds'])} | {metric} {100 * mean:.2f} +- {100 * spread:.2f} |"


def main() -> None:
    """Run what is asked for, and print the table as it grows."""
    options, more = parser_of(__doc__, "film-2k").parse_known_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print("| set | weights | seeds | score |\n|---|---|---|---|")
    for size in options.sizes:
        for start in STARTS:
            print(row(size, start, run(size, start, options, more)), flush=True)


if __name__ == "__main__":
    main()
