"""Whole runs: the losses are the same however the work is divided."""

import json
import shutil

import numpy as np
import pytest
from support.runs import Run, finished
from support.soak import in_soak

from megabert.cli import main
from megabert.tokens.shards.shard_set import ShardSet

TOLERANCE = 1e-5  # relative, float32, dropout on


@pytest.fixture(scope="module")
def unbroken(shards, run_once) -> Run:
    """One rank, never interrupted."""
    return run_once("an unbroken run", shards)


def assert_same_losses(run: Run, reference: Run, tolerance: float) -> None:
    expected = reference.losses()
    assert run.losses().keys() == expected.keys()
    for step, loss in run.losses().items():
        assert loss == pytest.approx(expected[step], rel=tolerance), f"step {step}"


def test_smoke_run_writes_everything_and_learns(unbroken):
    names = {path.name for path in unbroken.run_dir.iterdir()}
    written = "config.yaml command.txt environment.json deepspeed.json checked_shards.json metrics.jsonl"
    assert names >= {*written.split(), "logs", "tb", "checkpoints", "tokenizer"}
    assert list(unbroken.losses()) == list(range(1, 14))
    assert unbroken.losses()[8] < unbroken.losses()[1]
    tags = set().union(*unbroken.rows())
    assert tags >= {"train/mlm_loss", "train/nsp_accuracy", "train/lr", "train/grad_norm", "perf/tokens_per_s"}
    assert tags >= {"eval/mlm_loss", "eval/nsp_accuracy", "train/trust_ratio/all", "memory/max_allocated_gib"}


def test_done_run_says_so_and_changes_nothing(unbroken):
    before = unbroken.rows()
    assert unbroken.finish_well() == before
    assert "is done" in unbroken.output
    for command in (f"tensorboard --logdir '{unbroken.run_dir}/tb'", f"megabert export '{unbroken.run_dir}' --to DIR"):
        assert command in unbroken.output


def test_ranks_stages_and_budgets_do_not_change_losses(unbroken, shards, tmp_path):
    """``make soak`` has every number of ranks, stage and budget, by a launcher."""
    run = finished(tmp_path / "run", shards, ranks=3, flags={"engine": "zero3", "micro_batch_tokens": 300})
    assert_same_losses(run, unbroken, TOLERANCE)


@pytest.mark.parametrize("precision", ["fp8", *in_soak("bf16")])
def test_ranks_change_losses_of_few_bits_by_rounding_alone(shards, tmp_path, precision):
    flags = {"precision": precision, "micro_batch_tokens": 256, "phases.0.steps": 4, "phases.1.steps": 2}
    alone, shared = (Run(tmp_path / f"{ranks}", shards, ranks=ranks, flags=flags) for ranks in (1, 2))
    for run in (alone, shared):
        run.finish_well()
    assert_same_losses(shared, alone, 2e-3)


def test_card_tells_of_shards_that_the_run_names_relative_to_another_folder(unbroken, tmp_path, megabert):
    run = shutil.copytree(unbroken.run_dir, tmp_path / "run")
    config, environment = run / "config.yaml", run / "environment.json"
    config.write_text(config.read_text().replace(str(unbroken.data), unbroken.data.name))
    environment.write_text(json.dumps({**json.loads(environment.read_text()), "folder": str(unbroken.data.parent)}))
    megabert("export", run, "--to", tmp_path / "out")
    assert "phase1: instances" in (tmp_path / "out" / "README.md").read_text()


def test_report_states_the_unigram_baseline(unbroken, megabert):
    shown = megabert("report", unbroken.run_dir, "--text", "the [MASK] of the people").out
    held_out, train = (ShardSet.open(unbroken.data / "instances" / "64", split) for split in ("validation", "train"))
    counts = np.ones(train.metadata.vocab_size)
    np.add.at(counts, train.columns(((0, train.num_rows),)).masked_ids, 1)
    targets = held_out.columns(((0, min(40, held_out.num_rows)),)).masked_ids
    loss = -np.log(counts[targets] / counts.sum()).mean()
    assert f"{loss:.3f}" in shown
    assert (unbroken.run_dir / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert all(column in shown for column in ("unigram", "untrained", "trained"))
    counts = [int(line.split()[-3]) for line in shown.splitlines() if "piece  " in line or "[MASK]   " in line]
    last = ShardSet.open(unbroken.data / "instances" / "128", "validation")
    assert sum(counts) == len(last.columns(((0, min(256, last.num_rows)),)).masked_ids)


def test_report_fails_where_the_margin_at_masks_is_too_small(unbroken, capsys, megabert):
    printed = megabert("report", unbroken.run_dir).out
    line = next(line for line in printed.splitlines() if line.startswith("  [MASK]   "))
    model, unigram = map(float, line.split()[-2:])
    for asked, code in ((unigram - model - 0.01, 0), (unigram - model + 0.01, 3)):
        assert main(["report", str(unbroken.run_dir), f"--min-margin={asked}"]) == code
    assert "the held-out loss at [MASK] is" in capsys.readouterr().err


def test_report_scores_the_positions_of_the_last_validated_phase(unbroken, tmp_path, megabert):
    run = shutil.copytree(unbroken.run_dir, tmp_path / "run")
    first = [row for row in unbroken.rows() if row["phase"] == 1]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in first))
    lines = megabert("report", run).out.splitlines()
    counts = [int(line.split()[-3]) for line in lines if "piece  " in line or "[MASK]   " in line]
    held_out = ShardSet.open(unbroken.data / "instances" / "64", "validation")
    assert sum(counts) == len(held_out.columns(((0, min(256, held_out.num_rows)),)).masked_ids)


@pytest.mark.soak
@pytest.mark.parametrize("budget", [300, 512])
@pytest.mark.parametrize("engine", ["zero0", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_soak_worlds_every_rank_count_stage_and_budget(unbroken, shards, tmp_path, ranks, engine, budget):
    flags = {"engine": engine, "micro_batch_tokens": budget}
    run = finished(tmp_path / "run", shards, ranks=ranks, launcher="torchrun", flags=flags)
    assert_same_losses(run, unbroken, TOLERANCE)
    expected = unbroken.losses()
    worst = max(abs(loss / expected[step] - 1) for step, loss in run.losses().items())
    print(f"\nranks {ranks}, {engine}, micro_batch_tokens {budget}: largest relative difference {worst:.1e}")


def test_run_does_not_wait_for_torchs_compiler(shards, tmp_path, monkeypatch):
    """It lists what it has imported in the file ``MODULES``."""
    monkeypatch.setenv("MODULES", str(tmp_path / "modules"))
    flags = {"phases.0.steps": 2, "phases.1.steps": 1, "engine": "zero3"}
    Run(tmp_path / "run", shards, launcher="none", flags=flags, module="integration.programs.listing").finish_well()
    modules = (tmp_path / "modules").read_text().splitlines()
    assert "deepspeed.runtime.zero.muon.original_muon" in modules
    assert not {"torch._dynamo", "torch._inductor", "transformers"} & set(modules)
