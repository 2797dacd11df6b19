"""Three ways of sharing word embeddings between two models, at equal tokens (He et al. 2023, section 3).

    python -m benchmarks.sharing [--sharing disentangled shared separate] [--starts masked-lm] [--seeds 1 2 3]
    python -m benchmarks.sharing --sharing disentangled --starts longer

A DeBERTa 3 of two layers, 128 wide, its generator one layer of that width, AdamW, on a bundled corpus with the demo's
vocabulary. ``masked-lm`` trains both models as masked LMs for the first 600 of 1,600 steps, ``longer`` for the first
600 of 3,000, and ``none`` detects replaced tokens from the first of 1,600 steps on. The rate falls over the last 30% of
the detection. Held out are scored the least AUC that the discriminator can have without [CLS] and [SEP], which are
never replaced, and the generator's loss at [MASK] against the unigram's.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cells import (
    CORPORA,
    Curve,
    Result,
    build_shards,
    call,
    children_cpu_s,
    draw_panels,
    losses_at_mask,
    parser_of,
    read_results,
    run_missing,
    spread,
)
from megabert.foundation.text_tables import render_table
from megabert.observability.metrics import read_metrics
from megabert.settings.config.yaml_text import write_yaml
from megabert.tokens.shards import read_manifest

SHARING = ("disentangled", "shared", "separate")
STARTS = {"masked-lm": (600, 1000), "longer": (600, 2400), "none": (0, 1600)}
"""Steps as masked LMs, and steps of replaced-token detection."""
LENGTH, BATCH, MASKED, RATE = 64, 32, 0.25, 2e-3
SCORED_EVERY, SCORED_INSTANCES = 200, 256
HELD_OUT_MASKED = 0.15


@dataclass(frozen=True)
class Cell:
    """One run of the comparison."""

    corpus: str
    sharing: str
    start: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.corpus}-{self.sharing}-{self.start}-{self.seed}"


def recipe_of(cell: Cell) -> dict[str, Any]:
    """Return the recipe of a cell."""
    phase = {
        "max_seq_length": LENGTH,
        "global_batch_size": BATCH,
        "masked_lm_prob": MASKED,
        "mask_actions": [1.0, 0.0, 0.0],
        "learning_rate": RATE,
        "warmup_ratio": 0.1,
    }
    decays = ({"decay": "constant"}, {"decay": "one_minus_sqrt", "decay_ratio": 0.3})
    parts = zip(STARTS[cell.start], (False, True), decays, strict=True)
    return {
        "model": {
            "family": "deberta-v3",
            "preset": "tiny",
            "num_attention_heads": 4,
            "initializer_range": 0.05,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "max_position_embeddings": LENGTH,
            "position_buckets": 32,
            "generator_size": 1.0,
            "generator_layers": 1,
            "embedding_sharing": cell.sharing,
        },
        "optimizer": {"name": "adamw"},
        "phases": [
            {**phase, **decay, "steps": steps, "replaced_tokens": detects} for steps, detects, decay in parts if steps
        ],
        "micro_batch_tokens": BATCH * LENGTH,
        "checkpoint": {"every_steps": SCORED_EVERY},
        "validation": {"every_steps": SCORED_EVERY, "max_instances": SCORED_INSTANCES},
        "logging": {"every_steps": SCORED_EVERY // 5},
    }


def run_cell(cell: Cell, work: Path) -> Result:
    """Train, or resume what was killed, score the end, and delete the run."""
    flags = (*CORPORA[cell.corpus][1], "--objective", "none", "--masking", "dynamic", "--dupe-factor", "1")
    data = build_shards(cell.corpus, work / "data" / cell.corpus, *flags, lengths=(LENGTH,))
    run_dir, recipe = work / "runs" / cell.name, work / "recipes" / f"{cell.name}.yaml"
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(write_yaml(recipe_of(cell)))
    is_new, before = not run_dir.exists(), children_cpu_s()
    call("megabert", "pretrain", "--recipe", recipe, "--data.path", data, "--run-dir", run_dir, "--seed", cell.seed)
    cpu_s = round(children_cpu_s() - before, 1) if is_new else None
    rows = [row for row in read_metrics(run_dir) if "eval/rtd_auc" in row]
    shards = read_manifest(data / "instances" / str(LENGTH)).of_split("train")
    mean_length = sum(shard.tokens for shard in shards) / sum(shard.rows for shard in shards)
    scores = losses_at_mask(run_dir, [rows[-1]["step"]], max_instances=SCORED_INSTANCES)
    shutil.rmtree(run_dir)
    return {
        **asdict(cell),
        "tokens": round(sum(STARTS[cell.start]) * BATCH * mean_length),
        "steps": [row["step"] for row in rows],
        "auc": [round(without_specials(row["eval/rtd_auc"], mean_length), 4) for row in rows],
        **scores,
        "cpu_s": cpu_s,
    }


def without_specials(auc: float, mean_length: float) -> float:
    """Return at least which AUC is left without [CLS] and [SEP], if each of them is told from every replaced token.

    Two of the original tokens of an instance are these. The held-out split keeps the masks of its shards.
    """
    share = 2 / (mean_length * (1 - HELD_OUT_MASKED))
    return (auc - share) / (1 - share)


def draw(results: list[Result], path: Path) -> None:
    """Draw the AUC over the steps, a panel for each corpus and start."""
    panels: dict[tuple[str, str], list[Curve]] = {}
    for result in results:
        panels.setdefault((f"{result['corpus']}, start {result['start']}", "steps"), [])
    for title, curves in panels.items():
        for sharing in SHARING:
            own = [r for r in results if r["sharing"] == sharing and title[0] == f"{r['corpus']}, start {r['start']}"]
            if own:
                curves.append(Curve(sharing, own[0]["steps"], [result["auc"] for result in own]))
    draw_panels(panels, path, y_label="AUC without [CLS] and [SEP], at least", name="sharing", sharey=True)


def table(results: list[Result], corpus: str) -> str:
    """Return mean and range of the seeds, by start and sharing."""
    rows = []
    for start in STARTS:
        for sharing in SHARING:
            own = [r for r in results if (r["corpus"], r["start"], r["sharing"]) == (corpus, start, sharing)]
            if own:
                below = [result["unigram"] - result["loss"][-1] for result in own]
                seeds = ", ".join(str(result["seed"]) for result in own)
                rows.append((start, sharing, seeds, spread([r["auc"][-1] for r in own]), spread(below)))
    headers = ("start", "sharing", "seeds", "AUC", "nats below the unigram")
    return render_table(rows, headers=headers, align="lllrr") if rows else "nothing was run yet"


def main() -> None:
    """Run the cells that the results lack, then print the tables."""
    parser = parser_of(__doc__, __file__, name="sharing")
    parser.add_argument("--sharing", nargs="+", choices=SHARING, default=list(SHARING))
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=["masked-lm"])
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=["english"])
    options = parser.parse_args()
    results = read_results(options.results)
    cells = [
        Cell(corpus, sharing, start, seed)
        for seed in options.seeds
        for corpus in options.corpora
        for start in options.starts
        for sharing in options.sharing
    ]
    run_missing(
        [] if options.report else cells,
        results,
        options.results,
        key=lambda cell: (cell.corpus, cell.sharing, cell.start, cell.seed),
        run=lambda cell: run_cell(cell, options.work.resolve()),
    )
    for corpus in options.corpora:
        print(f"\n{corpus}: mean (least to greatest) of the seeds\n{table(results, corpus)}")
    if options.plot:
        draw(results, options.plot)


if __name__ == "__main__":
    main()
