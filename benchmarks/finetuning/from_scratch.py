"""What pre-training is worth: `megabert finetune` from a model of ours and from random weights of the same shape.

    python -m benchmarks.finetuning.from_scratch --data DATA --model RUN --out OUT --sizes film-2k snli-10k --seeds 3
    python -m benchmarks.finetuning.from_scratch ... --rates 3e-4 1e-3 3e-3 --starts ours --epochs 2

DATA is what data.py wrote, RUN the run folder of a pre-training, such as small_english.yaml's. Both sides have the same
sets, order, dropout and settings; flags that are not listed go to both. The last weights are scored, none are chosen by
the evaluation set. The second form tries other learning rates than the width's own (``auto``). A seed that has finished
is kept: the same command with more seeds or rates continues.
"""

import itertools
import json
import os
from typing import Any

from benchmarks.finetuning.compare import COMMON, SIZES, finetune, parser_of

STARTS = {"ours": (), "random": ("--random-weights", "true")}
EPOCHS = 2
"""Times those of compare.py: random weights need more."""


def row(cells: tuple[str, ...], found: dict[str, Any]) -> str:
    """Return a line of the table: the first metric of the first set."""
    name, metrics = next(iter(found["mean"].items()))
    metric, mean = next(iter(metrics.items()))
    score = f"{metric} {100 * mean:.2f} +- {100 * found['deviation'][name][metric]:.2f}"
    return f"| {' | '.join(cells)} | {len(found['seeds'])} | {score} |"


def main() -> None:
    """Run what is asked for, and print the table as it grows."""
    parser = parser_of(__doc__, "film-2k")
    parser.add_argument("--rates", nargs="+", default=["auto"], help="default: auto, the rate that fits each side")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--epochs", type=float, help=f"default: {EPOCHS} times those of compare.py")
    options, more = parser.parse_known_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print("| set | weights | rate | seeds | score |\n|---|---|---|---|---|")
    for size, start, rate in itertools.product(options.sizes, options.starts, options.rates):
        task, folder, fields = SIZES[size]
        out = options.out / size / (start if rate == "auto" else f"{start}-{rate}")
        given = {"model": options.model, "data": options.data / folder, "output-dir": out, "seeds": options.seeds}
        own = {"learning_rate": rate, "epochs": options.epochs or EPOCHS * fields["epochs"]}
        finetune(task, given | COMMON | fields | own, [*STARTS[start], *more])
        print(row((size, start, rate), json.loads((out / "results.json").read_text())), flush=True)


if __name__ == "__main__":
    main()
