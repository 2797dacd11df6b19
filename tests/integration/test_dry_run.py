"""``pretrain --dry-run``: the plan of a run on ranks that are not there, and what it refuses."""

import re
import shutil
from dataclasses import replace

import pytest
import torch
from support.runs import TINY

from megabert.tokens.shards.folder import InstanceStatistics, read_manifest, write_manifest
from megabert.training.run.start import RunInputs


@pytest.fixture
def dry_run(shards, megabert):
    """Return a function that plans a run on the shards, or on other data, and returns what it printed."""

    def plan(*flags: str, run_dir="runs/none", data=shards, code=0):
        words = ["pretrain", "--dry-run", "--recipe", "debug", "--run-dir", run_dir]
        for name, value in {**TINY, "data.path": data}.items():
            words += [f"--{name}", value]
        return megabert(*words, *flags, code=code)

    return plan


def test_dry_run_counts_the_masks_of_the_shards(dry_run, monkeypatch):
    masked = InstanceStatistics(rows=1, tokens=100, masked_tokens=90, max_seq_length=128, max_masked=90)
    large = ("--gpu", "h200", "--micro_batch_tokens", "100000", "--phases.0.global_batch_size", "1500")
    before = re.findall("activations (.+?) ", dry_run(*large).out)
    monkeypatch.setattr(RunInputs, "statistics", [masked])
    assert before < re.findall("activations (.+?) ", dry_run(*large).out)


def test_dry_run_plans_for_ranks_that_are_not_there(tmp_path, dry_run):
    shown = dry_run("--world-size", "9", "--gpu", "h200", run_dir=tmp_path / "run").out
    assert "bf16, ZeRO-1, 9 rank(s)" in shown
    assert " on 2 x 5 h200; megabert estimate says" in shown
    assert "run steps 9 to 13" in shown, "the second phase continues where the first ends"
    assert shown.count("SHA-256 of") == 2
    assert shown.count("% of them real") == 2
    assert shown.count("(the GPU has 140)") == 2
    assert "checkpoints: " in shown
    assert "positions 128 to 511 are never trained" in shown
    assert not (tmp_path / "run").exists()


def test_dry_run_says_where_a_phase_over_the_same_shards_begins(dry_run):
    same = ("--phases.1.max_seq_length", "64", "--phases.0.global_batch_size", "37")
    assert "after its last instance: epoch 1, instance 297 (data_start: continue)" in dry_run(*same).out
    shown = dry_run(*same, "--phases.1.data_start", "beginning", "--model.max-position-embeddings", "64").out
    assert "again from their first instance (data_start: beginning)" in shown
    assert "never trained" not in shown


def test_dry_run_resolves_tokens_and_shows_the_ramp(dry_run):
    ramp = ("--phases.0.initial_batch_size", "3", "--phases.0.batch_warmup_steps", "4")
    shown = dry_run("--phases.1.steps", "null", "--phases.1.tokens", "5000", *ramp).out
    assert "8 steps of 3 to 12 instances, growing over 4 batches" in shown
    mean = float(shown.split("phase2:")[1].split("instances of ")[1].split()[0])
    steps = -(-5000 // (7 * mean))
    assert f"{steps:.0f} steps of 7 instances" in shown


def test_dry_run_draws_the_schedules(dry_run):
    ramp = ("--phases.0.initial_batch_size", "3", "--phases.0.batch_warmup_steps", "5")
    shown = dry_run(*ramp).out
    assert "schedules over steps 1 to 13" in shown
    assert "instances per batch, 3 to 12" in shown
    assert "masked tokens, %: 15 throughout" in shown
    drawn = [line for line in shown.splitlines() if line.startswith("    |")]
    assert len(drawn) == 10
    assert {len(line) for line in drawn} == {4 + 1 + round(60 * 8 / 13) + 1 + round(60 * 5 / 13) + 1}


def test_more_ranks_take_fewer_micro_steps(dry_run):
    lines = [line for ranks in "14" for line in dry_run("--world-size", ranks).out.splitlines()]
    count = [int(line.split("each rank: ")[1].split()[0]) for line in lines if "each rank: " in line]
    # 12 instances of about 60 tokens, and 7 of about 120, of which these do not fit in two micro-batches of 512 tokens.
    assert count == [2, 3, 1, 1]


@pytest.mark.parametrize(("inner", "is_named"), [(512, True), (288, False), (128, False), (64, True)])
def test_dry_run_names_an_inner_width_that_fits_another_model(inner, is_named, dry_run):
    printed = dry_run("--model.hidden_size", "64", "--model.intermediate_size", str(inner)).out
    shown = f"model.intermediate_size={inner} is {inner // 64} times hidden_size=64; BERT has 4 times, 256"
    assert (shown in printed) == is_named


def test_dry_run_warns_of_many_passes(shards, tmp_path, dry_run):
    many = ("--phases.0.steps", "40000", "--phases.1.steps", "40000", "--phases.1.data")
    own, other = shards / "instances" / "128", tmp_path / "other"
    shutil.copytree(own, other)
    for flags, texts in ((many[:4], ["corpus"]), ((*many, own), [shards]), ((*many, other), [shards, other])):
        assert re.findall("passes over the (?:text of )?(.+), more", dry_run(*flags).out) == [*map(str, texts)]


def test_damaged_shard_is_found_among_the_sampled_ones(shards, tmp_path, dry_run):
    damaged = tmp_path / "damaged"
    shutil.copytree(shards, damaged)
    first = min((damaged / "instances" / "64").glob("train-*.arrow"))
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 1
    first.write_bytes(bytes(content))
    assert "SHA-256" in dry_run(data=damaged, code=3).err


def test_dry_run_refuses_a_fork_as_the_run_does(uninterrupted_run, tmp_path, dry_run):
    for step, code, message in (("777", 4, "no such checkpoint"), ("13", 2, "that checkpoint is at step 5 of phase 2")):
        fork = f"{uninterrupted_run.run_dir}@{step}"
        assert message in dry_run("--fork", fork, run_dir=tmp_path / "run", code=code).err


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--ops.attention", "triton"), 5, "ops.attention=triton cannot run on cpu"),
        (("--ops.tile_sizes", "none.json"), 2, "none.json: cannot be read"),
    ],
)
def test_dry_run_refuses_ops_that_cannot_run_here(flags, code, message, dry_run, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert message in dry_run("--device", "cpu", *flags, code=code).err
    dry_run("--gpu", "h200", *flags)  # the plan for another machine asks nothing of this one


def test_dry_run_plans_a_fork_and_a_begun_run_from_their_checkpoint_on(uninterrupted_run, tmp_path, dry_run):
    whole = uninterrupted_run.run_dir
    forked = dry_run("--fork", f"{whole}@9", run_dir=tmp_path / "fork").out
    begun = shutil.copytree(whole, tmp_path / "begun")
    for folder in (begun / "checkpoints").glob("step_*"):
        if int(folder.name.removeprefix("step_")) > 9:
            shutil.rmtree(folder)
    for shown in (forked, dry_run(run_dir=begun).out):
        assert "resumes at step 9 (phase2, step 1 of 5)" in shown
        assert "phase1: " in shown
        assert shown.count("no step is left") == 1
        assert "  4 steps of 7 instances (run steps 10 to 13): 28 instances" in shown
        assert "for 4 steps, " in shown
    shown = dry_run(run_dir=whole).out
    assert shown.endswith("is done: 13 steps\n")
    assert "run steps" not in shown


def test_dry_run_plans_for_the_device_that_is_asked_for(tmp_path, monkeypatch, dry_run):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "this process sees no GPU" in dry_run("--device", "cuda", run_dir=tmp_path / "run", code=2).err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    shown = dry_run("--device", "cpu", run_dir=tmp_path / "run").out
    assert "fp32, ZeRO-1" in shown
    assert "the GPU has" not in shown
    assert "on this CPU" in shown


def test_dry_run_refuses_shards_that_the_run_did_not_begin_with(shards, uninterrupted_run, tmp_path, dry_run):
    other = shutil.copytree(shards, tmp_path / "other")
    folder = other / "instances" / "128"
    first, *others = (manifest := read_manifest(folder)).shards
    write_manifest(folder, replace(manifest, shards=[replace(first, sha256="0" * 64), *others]))
    said = dry_run(data=other, run_dir=uninterrupted_run.run_dir, code=4).err
    assert f"phases[1]: the shards in {folder} are not the shards that the run began with" in said
