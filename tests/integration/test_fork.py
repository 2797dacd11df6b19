"""``--fork RUN@STEP``: a new run that begins at another one's checkpoint, under another configuration."""

import json

import pytest
from support.runs import TINY, Run, finished

from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.library import fine_tune
from megabert.training.run.folder import read_config

SAME: dict[str, object] = {**dict.fromkeys(TINY), "data.path": None}  # every field is the forked run's


def test_fork_continues_from_the_other_runs_checkpoint_with_another_learning_rate(uninterrupted_run, shards, tmp_path):
    origin, name = uninterrupted_run, f"{uninterrupted_run.run_dir}@9"
    flags = {**SAME, "fork": name, "phases.1.learning_rate": 1e-4, "phases.1.steps": 6}
    fork = finished(tmp_path / "fork", shards, ranks=2, flags=flags, recipe=None)
    assert list(fork.losses()) == [10, 11, 12, 13, 14]
    assert fork.losses()[10] == origin.losses()[10], "the same weights and data, dropout included"
    assert fork.losses()[11] != origin.losses()[11]
    assert f"changed since {name}, of which this is a fork: phases.1.steps: 5 -> 6" in fork.output
    assert "phases.1.learning_rate: 0.005 -> 0.0001" in fork.output
    old, new = (read_masters(find_checkpoint(run.run_dir / "checkpoints", 9)) for run in (origin, fork))
    assert all(new[name].equal(tensor) for name, tensor in old.items())
    assert read_config(fork.run_dir).fork == name
    assert json.loads((fork.run_dir / "status.json").read_text())["fork"] == name


@pytest.mark.soak
def test_a_run_goes_from_bf16_to_fp8_and_back_by_forks(shards, tmp_path):
    run = finished(tmp_path / "bf16", shards, flags={"precision": "bf16"})
    losses = run.losses()
    run = Run(tmp_path / "bf16", shards, flags={"precision": "fp8"})
    assert run.finish() == 4
    assert "precision" in run.output
    for origin, step, name in (("bf16", 8, "fp8"), ("fp8", 9, "bf16-again")):
        flags = {**SAME, "fork": f"{tmp_path / origin}@{step}", "precision": name.removesuffix("-again")}
        fork = finished(tmp_path / name, shards, flags=flags, recipe=None)
        assert list(fork.losses()) == list(range(step + 1, 14))
        assert all(abs(loss / losses[at] - 1) < 2e-2 for at, loss in fork.losses().items())
        old, new = (read_masters(find_checkpoint(tmp_path / run / "checkpoints", step)) for run in (origin, name))
        assert all(new[parameter].equal(tensor) for parameter, tensor in old.items())
    rows = [{"text": text, "label": label} for text, label in (("the whale rose", "sea"), ("a garden", "land"))]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, 8 * rows)))
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = {"precision": "bf16", "device": "cpu", "learning_rate": 3e-3, "epochs": 20}
    told = fine_tune("classification", model=tmp_path / "fp8", data=tmp_path, output_dir=tmp_path / "tuned", **settings)
    assert told.mean["dev"]["accuracy"] == 1.0
