"""Which learning rate fits a width: fine-tunings at several rates, from a model and from random weights of its shape.

    python -m benchmarks.finetuning.rates --data DATA --model MODEL --out OUT --sizes film-2k snli-10k --seeds 2

DATA is what data.py wrote. A rate of ``auto`` is the table's own (`megabert.downstream.finetuning.rates`). The last
weights are scored. A seed that has finished is kept: the same command with more seeds or rates continues.
"""

import itertools
import os
from typing import Any

from benchmarks.finetuning.compare import COMMON, SIZES, parser_of
from megabert.library import fine_tune

RATES = ("3e-5", "1e-4", "2e-4", "5e-4", "1e-3", "2e-3")
STARTS = {"pretrained": False, "random": True}


def main() -> None:
    """Run what is asked for, and print a line of the table after each setting."""
    parser = parser_of(__doc__, "film-2k")
    parser.add_argument("--rates", nargs="+", default=RATES)
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--epochs", type=float, help="default: the size's own")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print("| model | set | epochs | weights | rate | seeds | accuracy |\n|---|---|---|---|---|---|---|")
    for size, start, rate in itertools.product(options.sizes, options.starts, options.rates):
        task, folder, own = SIZES[size]
        settings: dict[str, Any] = {**COMMON, **own, "random_weights": STARTS[start], "seeds": options.seeds}
        settings |= {"learning_rate": rate if rate == "auto" else float(rate)}
        settings |= {"epochs": options.epochs or own["epochs"]}
        out = options.out / size / f"{start}-{rate}-{settings['epochs']:g}"
        summary = fine_tune(task, model=options.model, data=options.data / folder, output_dir=out, **settings)
        name, metrics = next(iter(summary.mean.items()))
        cells = (size, f"{settings['epochs']:g}", start, rate, options.seeds, summary.shown(name, next(iter(metrics))))
        print("|", options.model, "|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
