"""``megabert-data build --for RECIPE`` of every recipe on both bundled corpora, and 20 steps on its shards."""

import math

import pytest
from soak.soak_table import ROOT
from support.runs import TINY, Run

from megabert.settings.config.loading import load_run_config, shipped_names
from megabert.tokens.shards.folder import read_manifest

pytestmark = pytest.mark.soak

CORPORA = {"english": ("public_domain.jsonl", "en"), "korean": ("korean.jsonl", "ko")}
STEPS = 20
SMALL = {
    "model.preset": None,
    "model.num_hidden_layers": 2,
    "model.hidden_size": 128,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 256,
    "micro_batch_tokens": 8192,
    "validation.every_steps": 10,
    "validation.max_instances": 8,
    "checkpoint.every_steps": 1000,
    "checkpoint.keep_last": 1,
    "logging.every_steps": 1,
}
"""Smaller than the recipes: layers and widths, batches and numbers of steps. All else is theirs."""


TITLE = (
    f"megabert-data build --for RECIPE on the bundled corpora, dry run of the recipe as it is, then {STEPS} steps "
    "over all of its phases with 2 layers, 128 wide, and batches of 4 to 8 instances (all else as in the recipe)"
)
COLUMNS = f"{'recipe':<18} {'corpus':<8} {'pieces':>7} {'instances':<32} {'first loss':>10} {'last loss':>9}"


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("recipe", shipped_names("recipe"))
def test_each_recipe_trains_on_the_shards_built_for_it(recipe, corpus, table, tmp_path, megabert, megabert_data):
    file, language = CORPORA[corpus]
    words = ["--for", recipe, "--input", str(ROOT / "examples" / "corpus" / file), "--language", language]
    megabert_data("build", *words, "--output", tmp_path / "data", "--workers", "1")
    places = ["--data.path", tmp_path / "data", "--run-dir", tmp_path / "run"]
    megabert("pretrain", "--dry-run", "--recipe", recipe, *places)
    flags = {**dict.fromkeys(TINY), **SMALL, **short(recipe)}
    run = Run(tmp_path / "run", tmp_path / "data", recipe=recipe, flags=flags)
    assert run.finish(timeout_s=900) == 0, run.output[-4000:]
    losses = run.losses()
    assert list(losses) == list(range(1, STEPS + 1))
    assert all(map(math.isfinite, losses.values()))
    manifests = {path.name: read_manifest(path) for path in (tmp_path / "data" / "instances").iterdir()}
    rows = [f"{length}: {sum(s.rows for s in m.shards if s.split == 'train'):,}" for length, m in manifests.items()]
    pieces = next(iter(manifests.values())).metadata.vocab_size
    shown = f"{', '.join(sorted(rows, key=len)):<32} {losses[1]:>10.3f} {losses[STEPS]:>9.3f}"
    table.add(f"{recipe:<18} {corpus:<8} {pieces:>7,} {shown}")


def short(recipe: str) -> dict[str, object]:
    """Return flags that spread the steps over the phases of a recipe, in batches that grow where the recipe's do."""
    phases = load_run_config(recipe).phases
    flags: dict[str, object] = {}
    for number, phase in enumerate(phases):
        here = f"phases.{number}"
        flags[f"{here}.steps"] = STEPS // len(phases) + (number < STEPS % len(phases))
        flags[f"{here}.global_batch_size"] = 8 if phase.max_seq_length <= 512 else 4
        if phase.initial_batch_size is not None:
            flags[f"{here}.initial_batch_size"] = 2
            flags[f"{here}.batch_warmup_steps"] = 2
    return flags
