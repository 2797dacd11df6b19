"""The cells of the comparison: a family, a corpus, a schedule and a seed, each a run of ``megabert pretrain``."""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cells import CORPORA, build_shards, call, losses_at_mask
from benchmarks.timed import TAG
from megabert.observability.metrics import read_metrics
from megabert.settings.config.yaml_text import write_yaml
from megabert.tokens.shards import read_manifest

SHORT, LONG = 16, 128
SHORT_STEPS, SHORT_BATCH = 600, 32
LONG_STEPS, LONG_BATCH = 250, 8
ALONE_STEPS = 700
"""Steps of length 128 without a short phase before them: more tokens and more CPU time than both phases together."""
SCORED_EVERY, SCORED_INSTANCES = 100, 128
SCHEDULES = {"short first": ((SHORT, SHORT_STEPS), (LONG, LONG_STEPS)), "128 alone": ((LONG, ALONE_STEPS),)}
BATCHES = {SHORT: SHORT_BATCH, LONG: LONG_BATCH}
SCORES = ("eval/nsp_accuracy", "eval/rtd_auc")


@dataclass(frozen=True)
class Candidate:
    """A family at two layers, 128 wide."""

    model: dict[str, Any]
    masked: float
    """Share of the tokens that is masked, in both phases."""
    objective: str = "none"
    """Sentence objective of its shards."""


CANDIDATES = {
    "bert": Candidate({"family": "bert"}, masked=0.4, objective="nsp"),
    "roberta": Candidate({"family": "roberta"}, masked=0.4),
    "electra": Candidate({"family": "electra", "generator_size": 0.5}, masked=0.25),
}
RATE = 2e-3
"""Highest rate of AdamW, held after the warm-up, so that no point of a curve depends on the steps after it."""


@dataclass(frozen=True)
class Cell:
    """One run of the comparison."""

    corpus: str
    family: str
    schedule: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.corpus}-{self.family}-{self.schedule.replace(' ', '-')}-{self.seed}"


def run_cell(cell: Cell, work: Path) -> dict[str, Any]:
    """Train and delete the run. What was killed begins again: the CPU time of a resumed run would not count all of it.

    Returns:
        The cell's fields, and for each validation at length 128 the tokens and CPU seconds of training until then, the
        held-out loss in nats at [MASK], and next-sentence accuracy or discriminator AUC; once, the unigram's loss.
    """
    data, run_dir, recipe = build(cell, work), work / "runs" / cell.name, work / "recipes" / f"{cell.name}.yaml"
    shutil.rmtree(run_dir, ignore_errors=True)
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(write_yaml(_recipe(cell)))
    words = ("--recipe", recipe, "--data.path", data, "--run-dir", run_dir, "--seed", cell.seed)
    call("benchmarks.timed", "pretrain", *words)
    schedule = SCHEDULES[cell.schedule]
    before = sum(steps for length, steps in schedule if length != LONG)
    rows = [row for row in read_metrics(run_dir) if "eval/mlm_loss" in row and row["step"] > before]
    first = sum(steps * BATCHES[length] * _mean_length(data, length) for length, steps in schedule if length != LONG)
    a_step = LONG_BATCH * _mean_length(data, LONG)
    at_mask = losses_at_mask(run_dir, [row["step"] for row in rows], max_instances=SCORED_INSTANCES)
    shutil.rmtree(run_dir)
    return {
        **asdict(cell),
        "tokens": [round(first + (row["step"] - before) * a_step) for row in rows],
        "cpu_s": [row[TAG] for row in rows],
        **at_mask,
        **{tag.removeprefix("eval/"): [round(row[tag], 4) for row in rows] for tag in SCORES if tag in rows[0]},
    }


def build(cell: Cell, work: Path) -> Path:
    """Build the shards of both lengths, or find them finished. Masks are the loader's, but for the held-out text's."""
    objective = CANDIDATES[cell.family].objective
    output = work / "data" / f"{cell.corpus}-{objective}"
    flags = (*CORPORA[cell.corpus][1], "--objective", objective, "--masking", "dynamic")
    return build_shards(
        cell.corpus, output, *flags, "--dupe-factor", 1 if objective == "none" else 5, lengths=(SHORT, LONG)
    )


def _mean_length(data: Path, length: int) -> float:
    shards = read_manifest(data / "instances" / str(length)).of_split("train")
    return sum(shard.tokens for shard in shards) / sum(shard.rows for shard in shards)


def _recipe(cell: Cell) -> dict[str, Any]:
    candidate = CANDIDATES[cell.family]
    phases: list[dict[str, Any]] = [
        {
            "max_seq_length": length,
            "steps": steps,
            "global_batch_size": BATCHES[length],
            "masked_lm_prob": candidate.masked,
            "learning_rate": RATE,
            "warmup_ratio": 0.1,
            "decay": "constant",
        }
        for length, steps in SCHEDULES[cell.schedule]
    ]
    if len(phases) > 1:
        phases[-1]["new_positions"] = "tile"
    sizes = {"preset": "tiny", "num_attention_heads": 4, "initializer_range": 0.05}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return {
        "model": {**sizes, **dropout, **candidate.model},
        "optimizer": {"name": "adamw"},
        "phases": phases,
        "micro_batch_tokens": 4096,
        "checkpoint": {"every_steps": SCORED_EVERY, "keep_last": 1000},
        "validation": {"every_steps": SCORED_EVERY, "max_instances": SCORED_INSTANCES},
        "logging": {"every_steps": SCORED_EVERY // 5},
    }
