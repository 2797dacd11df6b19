"""The cells of the comparison: a candidate, a peak rate, a seed and a corpus, each a run of ``megabert pretrain``."""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cells import CORPORA, build_shards, call, children_cpu_s, losses_at_mask, words_of

LENGTH, BATCH = 64, 32
TOKENS = 500_000
"""Tokens that every cell trains on, some 300 steps."""
SCORED_EVERY, SCORED_INSTANCES = 40, 512  # steps
PASSES = {"none": 1, "nsp": 5}
"""Passes over the documents by objective: each draws other pairs, while single segments stay the same."""
SHARED = {
    # The recipe demo_modern (docs/decisions.md), but for what sets the families apart. Masks are the loader's.
    "model.preset": "tiny",
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "model.initializer_range": 0.05,
    "model.max_position_embeddings": LENGTH,
    "optimizer.name": "adamw",
    "phases.0.max_seq_length": LENGTH,
    "phases.0.global_batch_size": BATCH,
    "phases.0.tokens": TOKENS,
    "phases.0.masked_lm_prob": 0.4,
    "phases.0.warmup_ratio": 0.1,
    "micro_batch_tokens": BATCH * LENGTH,
    "checkpoint.every_steps": SCORED_EVERY,
    "checkpoint.keep_last": 1000,
    "validation.every_steps": 10**6,  # at the end alone: what counts is scored from the checkpoints
    "validation.max_instances": 64,
    "logging.every_steps": SCORED_EVERY,
}


@dataclass(frozen=True)
class Candidate:
    """A family at the shape that all share: two layers, 128 wide, 703,000 parameters at 2,048 pieces."""

    name: str
    flags: dict[str, object]
    objective: str = "none"
    """Sentence objective of its shards."""


# The feed-forward layer is as wide as makes the parameters equal to BERT's, pooler and next-sentence head counted.
# ModernBERT's layer has three matrices; DeBERTa's first version projects positions by two more.
CANDIDATES = (
    Candidate("bert", {"family": "bert", "intermediate_size": 512}, objective="nsp"),
    Candidate("roberta", {"family": "roberta", "intermediate_size": 544}),
    Candidate("deberta", {"family": "deberta", "intermediate_size": 400}),
    Candidate("deberta-v2", {"family": "deberta-v2", "intermediate_size": 544, "position_buckets": 32}),
    Candidate("modernbert", {"family": "modernbert", "intermediate_size": 378, "global_rope_theta": 1e4}),
    # That of demo_modern: its second layer sees two pieces to either side.
    Candidate(
        "modernbert-window-4",
        {
            "family": "modernbert",
            "intermediate_size": 378,
            "global_rope_theta": 1e4,
            "global_attn_every_n_layers": 2,
            "local_attention": 4,
        },
    ),
)


@dataclass(frozen=True)
class Cell:
    """One run of the comparison."""

    corpus: str
    candidate: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.corpus}-{self.candidate}-{self.rate:g}-{self.seed}"


def run_cell(cell: Cell, work: Path) -> dict[str, Any]:
    """Train, or resume what was killed, score all checkpoints at [MASK], and delete the run.

    Returns:
        The cell's fields, its number of parameters, tokens a step, scored steps with the losses in nats at held-out
        [MASK] positions, the unigram's loss there, and CPU seconds of the training, None where it was resumed.
    """
    candidate = next(candidate for candidate in CANDIDATES if candidate.name == cell.candidate)
    data, run_dir = build(cell.corpus, candidate.objective, work), work / "runs" / cell.name
    flags: dict[str, object] = {**SHARED, **{f"model.{name}": value for name, value in candidate.flags.items()}}
    flags |= {"phases.0.learning_rate": cell.rate, "seed": cell.seed, "data.path": data, "run-dir": run_dir}
    is_new, before = not run_dir.exists(), children_cpu_s()
    call("megabert", "pretrain", "--recipe", "debug", "--config", str(_one_phase(work)), *words_of(flags))
    cpu_s = round(children_cpu_s() - before, 1) if is_new else None
    result = {**asdict(cell), **_scores(run_dir, data), "cpu_s": cpu_s}
    shutil.rmtree(run_dir)
    return result


def build(corpus: str, objective: str, work: Path) -> Path:
    """Build the shards of a corpus, or find them finished; pairs have the vocabulary of the single segments."""
    flags = CORPORA[corpus][1]
    if objective != "none":
        vocabulary = build(corpus, "none", work) / "instances" / str(LENGTH) / "tokenizer"
        flags = (*flags[:2], "--tokenizer", str(vocabulary))
    flags = (*flags, "--objective", objective, "--masking", "dynamic", "--dupe-factor", str(PASSES[objective]))
    return build_shards(corpus, work / "data" / f"{corpus}-{objective}", *flags, lengths=(LENGTH,))


def _scores(run_dir: Path, data: Path) -> dict[str, Any]:
    """Score all checkpoints of a run."""
    from megabert.downstream.export.sources import open_source
    from megabert.tokens.shards import read_manifest

    entries = read_manifest(data / "instances" / str(LENGTH)).of_split("train")
    steps = sorted(int(path.name.removeprefix("step_")) for path in (run_dir / "checkpoints").glob("step_*"))
    model = open_source(str(run_dir), "last").build_model()
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokens_a_step": round(BATCH * sum(e.tokens for e in entries) / sum(e.rows for e in entries), 1),
        "steps": steps,
        **losses_at_mask(run_dir, steps, max_instances=SCORED_INSTANCES),
    }


def _one_phase(work: Path) -> Path:
    """Write the file that leaves one phase of the recipe's; flags say the rest."""
    path = work / "one_phase.yaml"
    path.write_text("phases: [{tokens: 1, global_batch_size: 1, learning_rate: 1.0}]\n")
    return path
