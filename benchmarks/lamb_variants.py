"""What the rule of LAMB changes in a small run: how far biases move, and the held-out loss.

    python -m benchmarks.lamb_variants [--peak X]... [--seed N]... [--steps 120] [--data DIR] [--runs FILE] [--png FILE]

Two layers, 128 wide, on the bundled corpus: 16 instances of at most 64 tokens a step, the schedule of ``bert_large``
(warm-up over 28.43% of the steps, decay to the power of 0.5) with its own peak and another, weight decay 0.01, clipping
at 1. The runs of a seed begin with the same weights and see the same instances in the same order; only the rule and the
peak differ.
"""

# T packed tokens, B sequences, M masked positions

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.claims import LENGTH, batches_of, build_shards
from megabert.data.batch import MicroBatch
from megabert.data.loader import PackedLoader
from megabert.data.packing import shape_for
from megabert.data.step_packer import RankShare, StepPacker
from megabert.foundation.text_tables import render_table
from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize
from megabert.optim import Fragment, StepSettings, build_optimizer, learning_rate
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import OptimizerConfig
from megabert.tokens.shards.shard_set import ShardSet

VARIANTS = ("apex", "nvlamb", "paper", "deepspeed")
PEAKS = (6e-3, 2e-2)
BATCH = 16
MEASURED_EVERY, HELD_OUT = 20, 256  # steps, instances
COLUMNS = {
    "held-out masked-LM loss": "mlm_loss",
    "RMS of biases": "biases",
    "of the masked LM's bias": "mlm_bias",
    "of LayerNorm weights - 1": "layer_norm",
}
Run = dict[str, Any]
"""Variant, peak, seed, and for each column its values by step."""


def train(variant: Any, peak: float, seed: int, steps: int, shards: ShardSet, held_out: list[MicroBatch]) -> Run:
    """Train one model; measure it every so many steps and at the end."""
    torch.set_num_threads(1)
    config = ModelConfig(
        preset="tiny", vocab_size=shards.metadata.vocab_size, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = BertForPreTraining(config)
    initialize(model, seed)
    named = dict(model.named_parameters())
    optimizer = build_optimizer(named.items(), OptimizerConfig(lamb_variant=variant), lamb_backend="torch")
    table = [Fragment(p, 0, name, 0, p.numel()) for name, p in named.items()]
    optimizer.attach(table, {name: p.shape for name, p in named.items()}, None)
    schedule = PhaseConfig(
        steps=steps, global_batch_size=BATCH, learning_rate=peak, warmup_ratio=0.2843, decay_power=0.5
    )
    shape = shape_for(shards.statistics, global_batch_size=BATCH, world_size=1, micro_batch_tokens=8192)
    packer = StepPacker(shards, seed=seed, global_batch_size=BATCH, share=RankShare(shape=shape))
    started, run = time.process_time(), {"variant": variant, "peak": peak, "seed": seed, "steps": []}
    with PackedLoader(packer, num_steps=steps) as loader:
        for step in loader:
            for batch in step.micro_batches:
                out = model(batch)
                (out.mlm_loss_sum / step.num_masked + out.nsp_loss_sum / step.num_instances).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(StepSettings(lr=learning_rate(schedule, step.number), bias_step=step.number))
            optimizer.zero_grad()
            if step.number % MEASURED_EVERY == 0 or step.number == steps:
                run["steps"].append(step.number)
                for name, value in measure(model, held_out).items():
                    run.setdefault(name, []).append(value)
    return run | {"cpu_s": round(time.process_time() - started)}


@torch.no_grad()
def measure(model: BertForPreTraining, held_out: list[MicroBatch]) -> dict[str, float]:
    """Return the held-out loss in nats, and the root mean square of what is not decayed."""
    model.eval()
    loss_sum = sum(float(model(batch).mlm_loss_sum) for batch in held_out)
    model.train()
    named = dict(model.named_parameters())
    groups = {
        "biases": [p for name, p in named.items() if name.endswith("bias")],
        "mlm_bias": [named["cls.predictions.decoder.bias"]],
        "layer_norm": [p - 1 for name, p in named.items() if name.endswith("LayerNorm.weight")],
    }
    masked = sum(batch.num_masked for batch in held_out)
    return {"mlm_loss": loss_sum / masked} | {name: rms(tensors) for name, tensors in groups.items()}


def rms(tensors: list[torch.Tensor]) -> float:
    """Return the root mean square of all elements."""
    return float(torch.cat([tensor.flatten() for tensor in tensors]).double().square().mean().sqrt())


def table(runs: list[Run]) -> str:
    """Return mean, least and greatest of the seeds at the last step, a row for each peak and variant."""
    rows = []
    for peak, variant in itertools.product(sorted({run["peak"] for run in runs}), VARIANTS):
        chosen = [run for run in runs if (run["peak"], run["variant"]) == (peak, variant)]
        if chosen:
            rows.append((f"{peak:g}", variant, *(spread([run[key][-1] for run in chosen]) for key in COLUMNS.values())))
    return render_table(rows, headers=("peak", "variant", *COLUMNS), align="ll" + "r" * len(COLUMNS))


def spread(values: list[float]) -> str:
    """Return mean and range, in as many digits as the smallest value needs."""
    form = ".3f" if min(values) >= 0.01 else ".1e"
    return f"{statistics.mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def draw(runs: list[Run], path: Path) -> None:
    """Draw the means of the seeds over steps: biases in the first row, held-out loss in the second."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    peaks = sorted({run["peak"] for run in runs})
    figure, grid = pyplot.subplots(
        2, len(peaks), figsize=(1 + 4 * len(peaks), 6), dpi=120, sharex=True, sharey="row", squeeze=False
    )
    for column, peak in enumerate(peaks):
        for variant in VARIANTS:
            chosen = [run for run in runs if (run["peak"], run["variant"]) == (peak, variant)]
            for row, key in enumerate(("biases", "mlm_loss")):
                means = [statistics.mean(values) for values in zip(*(run[key] for run in chosen), strict=True)]
                grid[row][column].plot(chosen[0]["steps"], means, marker="o", markersize=3, label=variant)
        grid[0][column].set_title(f"peak learning rate {peak:g}")
        grid[0][column].set_yscale("log")
        grid[1][column].set_xlabel("step")
    grid[0][0].set_ylabel("RMS of biases")
    grid[1][0].set_ylabel("held-out masked-LM loss (nats)")
    grid[0][-1].legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> None:
    """Train what ``--runs`` does not hold yet, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="optimizer updates (default 120)")
    parser.add_argument("--seed", type=int, action="append", help="repeatable (default: 0, 1 and 2)")
    parser.add_argument("--peak", type=float, action="append", help="highest rate, repeatable (default: 6e-3 and 2e-2)")
    parser.add_argument("--data", type=Path, help="folder to build shards in, kept (default: a temporary one)")
    parser.add_argument("--runs", type=Path, help="file of finished runs, JSON Lines; what is in it is not run again")
    parser.add_argument("--png", type=Path, help="draw the curves into this file")
    arguments = parser.parse_args()
    runs, seeds = [], arguments.seed or [0, 1, 2]
    if arguments.runs and arguments.runs.exists():
        runs = [json.loads(line) for line in arguments.runs.read_text().splitlines()]
    done = {(run["seed"], run["peak"], run["variant"]) for run in runs}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.data or Path(temporary)
        build_shards(folder)
        shards, validation = (ShardSet.open(folder / "instances" / str(LENGTH), s) for s in ("train", "validation"))
        held_out = batches_of(validation, HELD_OUT)
        for seed, peak, variant in itertools.product(seeds, arguments.peak or PEAKS, VARIANTS):
            if (seed, peak, variant) in done:
                continue
            runs.append(train(variant, peak, seed, arguments.steps, shards, held_out))
            print(json.dumps(runs[-1]), file=sys.stderr)
            if arguments.runs:
                with arguments.runs.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
    print(f"{arguments.steps} steps; at the end, mean (least to greatest) of {len(seeds)} seeds\n{table(runs)}")
    if arguments.png:
        draw(runs, arguments.png)


if __name__ == "__main__":
    main()
