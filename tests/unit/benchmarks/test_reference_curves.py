"""Reference curves are gathered from runs that differ in their seeds alone."""

import json

import pytest
from support.run_folders import eval_row, train_row, write_run

from benchmarks import reference_curves
from benchmarks.gpu.curves import write
from megabert.foundation.errors import ConfigError
from megabert.tokens.shards.shard_set import ShardSet
from megabert.tooling.measurements.reference import read_reference

MORE = {"train/mlm_accuracy": 0.1, "train/masked_share": 0.15, "train/global_batch_size": 32}


@pytest.fixture
def run(tmp_path, shard_folder):
    """Write a run of one phase over real shards; ``worse`` is added to its losses."""

    def write(name, worse=0.0, steps=(1, 20), **fields):
        phase = {"data": str(shard_folder)}
        rows = [train_row(step, 8.0 + worse, **MORE) for step in steps] + [eval_row(20, 8.0 + worse)]
        fields = {"model": {"vocab_size": 4096}, "phases": {"0": phase, "1": phase}, **fields}
        folder = write_run(
            tmp_path / name, [*rows, *({**row, "step": row["step"] + 20, "phase": 2} for row in rows)], **fields
        )
        (folder / "environment.json").write_text(json.dumps({"devices": ["cpu"]}))
        return folder

    return write


def test_curves_have_each_series_of_each_seed_and_where_they_come_from(run, tmp_path, shard_folder):
    runs = [run(f"run{seed}", worse=seed / 10, seed=seed) for seed in (1, 2, 3)]
    output = tmp_path / "debug-text.json"
    reference_curves.write_curves(runs, output, text="a text", commands=["megabert pretrain --recipe debug"])
    reference = read_reference(output)
    assert (reference.recipe, reference.seeds, reference.device, reference.text) == (
        "debug",
        [1, 2, 3],
        "cpu",
        "a text",
    )
    assert len(reference.commit) == 10
    first, second = reference.phases
    assert first.series["train/mlm_loss"].steps == [1, 20]
    assert first.series["train/mlm_loss"].values == [[7.6, 7.6], [7.7, 7.7], [7.8, 7.8]]
    assert second.series["eval/mlm_loss"].steps == [40]
    assert first.held_out_instances == ShardSet.open(shard_folder, "validation").num_rows
    assert first.tokens_per_step == 4096, "128 tokens for each of 32 instances"


def test_the_gpu_runbook_writes_curves_of_its_runs_and_these_are_on_track(run, tmp_path):
    row = write([run(f"run{seed}", worse=seed / 10, seed=seed) for seed in (1, 2, 3)], tmp_path / "debug-cpu.json")
    assert row["passes"]
    assert read_reference(tmp_path / "debug-cpu.json").text == "the shards of the GPU runbook"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"seed": 2, "z_loss": 0.5}, "differs from .*run1 in z_loss"),
        ({"seed": 1}, r"the seeds \[1, 1\]"),
        ({"seed": 2, "steps": (1, 10)}, "phase 1: train/mlm_loss was logged at different steps"),
    ],
)
def test_runs_that_differ_in_more_than_the_seed_are_refused(fields, says, run, tmp_path):
    runs = [run("run1", seed=1), run("run2", **fields)]
    with pytest.raises(ConfigError, match=says):
        reference_curves.write_curves(runs, tmp_path / "x.json", text="a text", commands=[])
