"""``megabert-data build --for RECIPE`` of every recipe on both bundled corpora, and shards that do not fit a recipe."""

import itertools
import math
import re
import shlex
from pathlib import Path

import pytest
from soak.soak_table import ROOT, SoakTable
from support.runs import TINY, Run

from data_prep.cli import main as build
from megabert.cli import main
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
UNFIT = (
    # The recipe that the shards were built for, further flags of the build, the recipe that is to train, its flags.
    ("bert_base", "", "roberta_base", ""),
    ("bert_base", "", "albert_base", ""),
    ("bert_base", "", "electra_small", ""),
    ("bert_base", "", "cramming", ""),
    ("bert_base", "", "modernbert_base", ""),
    ("bert_base", "", "gpt_bert_style", ""),
    ("bert_base", "", "bert_large", "--shards.masked-lm-prob 0.4"),
    ("bert_base", "", "bert_base_1gpu", "--shards.uncased true --shards.vocab-size 8000"),
    ("bert_base", "", "bert_large", "--shards.min-tokens 0 64"),
    ("roberta_base", "", "bert_large", ""),
    ("roberta_base", "", "albert_base", ""),
    ("roberta_base", "", "deberta_base", "--shards.mask-unit whole_word"),
    ("roberta_base", "--vocab-size 8000", "deberta_base", ""),
    ("electra_small", "", "cramming", ""),
    ("electra_small", "--masked-lm-prob 0.4 --dupe-factor 3", "electra_small", ""),
)


TITLE = (
    f"megabert-data build --for RECIPE on the bundled corpora, dry run of the recipe as it is, then {STEPS} steps "
    "over all of its phases with 2 layers, 128 wide, and batches of 4 to 8 instances (all else as in the recipe)"
)
COLUMNS = f"{'recipe':<18} {'corpus':<8} {'pieces':>7} {'instances':<32} {'first loss':>10} {'last loss':>9}"


@pytest.fixture(scope="module")
def refusals():
    return SoakTable(
        "build_for_unfit",
        "shards of every tenth English document that do not fit a recipe: the refusal of megabert pretrain --dry-run, "
        "and the command that it names, which was run and whose shards passed the dry run",
        "",
    )


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("recipe", shipped_names("recipe"))
def test_each_recipe_trains_on_the_shards_that_are_built_for_it(recipe, corpus, table, tmp_path, megabert_data):
    file, language = CORPORA[corpus]
    words = ["--for", recipe, "--input", str(ROOT / "examples" / "corpus" / file), "--language", language]
    megabert_data("build", *words, "--output", tmp_path / "data", "--workers", "1")
    assert dry_run(recipe, tmp_path / "data") == 0
    run = Run(
        tmp_path / "run", tmp_path / "data", recipe=recipe, flags={**dict.fromkeys(TINY), **SMALL, **short(recipe)}
    )
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


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Every tenth document of the English corpus."""
    lines = (ROOT / "examples" / "corpus" / CORPORA["english"][0]).read_text(encoding="utf-8").splitlines(keepends=True)
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("".join(itertools.islice(lines, 0, None, 10)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def shards(texts, tmp_path_factory):
    """Build for a recipe, once for the module."""
    built: dict[tuple[str, str], Path] = {}

    def build_once(recipe: str, flags: str) -> Path:
        if (recipe, flags) not in built:
            output = tmp_path_factory.mktemp("shards") / "data"
            words = ["--for", recipe, *flags.split(), "--input", str(texts), "--output", str(output)]
            assert build(["build", *words, "--language", "en", "--validation-share", "0.2", "--workers", "1"]) == 0
            built[recipe, flags] = output
        return built[recipe, flags]

    return build_once


@pytest.mark.parametrize(("built", "with_flags", "recipe", "flags"), UNFIT)
def test_shards_that_do_not_fit_are_refused_and_the_named_command_builds_some_that_do(
    built, with_flags, recipe, flags, shards, refusals, tmp_path, tmp_path_factory, capsys, megabert_data
):
    data = tmp_path / "data"
    data.symlink_to(shards(built, with_flags))
    capsys.readouterr()
    assert dry_run(recipe, data, *flags.split()) == 3
    message = capsys.readouterr().err
    refused = re.findall(r"^  (\w+: \S+ in the shards, \S+ wanted)$", message, re.MULTILINE)
    missing = re.search(r"phases\[\d\]\.max_seq_length=\d+, and .* has shards of .*\.$", message, re.MULTILINE)
    assert refused or missing, message
    command = re.search(r"(?:Build shards for it|Build all of them): megabert-data (.*)", message)[1]
    assert command.startswith(f"build --for {recipe} ")
    megabert_data(*shlex.split(command), "--workers", "1")
    assert dry_run(recipe, Path(f"{data}-{recipe}"), *flags.split()) == 0
    command = re.sub(rf"{re.escape(str(tmp_path_factory.getbasetemp()))}/[^/]*/", "", command)
    words = (("shards for", built, with_flags), ("recipe", recipe, flags))
    what = ", ".join(" ".join(filter(None, part)) for part in words)
    refusals.add(f"{what}: refused: {'; '.join(refused) or missing[0].partition(': ')[2]}")
    refusals.add(f"  built, fits: megabert-data {command}")


def dry_run(recipe: str, data: Path, *flags: str) -> int:
    words = ["--recipe", recipe, "--data.path", str(data), "--run-dir", str(data.parent / "run")]
    return main(["pretrain", "--dry-run", *words, *flags])
