"""A run's steps next to their prediction: which rows count, and what is a part."""

import json
from types import SimpleNamespace

import pytest
from support.measured_rates import measured_debug
from support.run_folders import train_row, write_run

from benchmarks.predictions import steps_of_a_run
from benchmarks.predictions.steps_of_a_run import measured_parts, parts_of, render_steps
from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.foundation.json_files import to_json
from megabert.settings.config.loading import load_run_config
from megabert.tooling.planning.step_time import StepTime


def row(step: int, step_s: float, compute_s: float, *, phase: int = 1) -> dict:
    return train_row(step, 5.0, phase=phase, **{"perf/step_s": step_s, "perf/compute_s": compute_s})


def test_parts_add_up_to_the_step():
    step = StepTime(compute_s=1.0, communication_s=0.5, hidden_s=0.4, passes_s=0.0, optimizer_s=0.2, loader_s=2.0)
    assert parts_of(step) == pytest.approx(
        {"computation": 1.0, "update": 0.3, "waiting for data": 0.7, "whole step": 2.0}
    )
    found = measured_parts([row(2, 1.0, 0.5), row(3, 9.0, 9.0), row(4, 1.0, 0.5)])
    assert found == pytest.approx({"computation": 0.5, "update": 0.49, "waiting for data": 0.01, "whole step": 1.0})


def test_first_row_of_a_phase_is_left_out_and_phases_without_rows_too():
    rows = [row(1, 50.0, 50.0), row(2, 0.25, 0.125), row(3, 0.25, 0.125)]
    table = render_steps(load_run_config("debug"), measured_debug(), rows, ranks=2).splitlines()
    assert [line.split()[:3] for line in table[1:]] == [
        ["phase1", "computation", "125.0"],
        ["phase1", "update", "57.0"],
        ["phase1", "waiting", "for"],
        ["phase1", "whole", "step"],
    ]
    assert table[1].split()[-2:] == ["125.0", "1.00"]


def test_run_without_a_second_row_is_told_so():
    with pytest.raises(CheckpointError, match="no step after a phase's first one"):
        render_steps(load_run_config("debug"), measured_debug(), [row(1, 1.0, 1.0)], ranks=2)


def test_ranks_that_the_nodes_cannot_share_equally_are_refused():
    rows, measured = [row(2, 1.0, 1.0)], measured_debug()
    ranks = 2 * measured.ranks_per_node + 1
    with pytest.raises(ConfigError, match=rf"the run has {ranks} ranks, which 3 nodes of {measured.ranks_per_node}"):
        render_steps(load_run_config("debug"), measured, rows, ranks=ranks)


def test_shards_are_found_from_another_folder_than_the_run_was_started_in(tmp_path, shard_folder, monkeypatch):
    monkeypatch.setattr(steps_of_a_run, "find_checkpoint", lambda folder: folder)
    monkeypatch.setattr(steps_of_a_run, "read_checkpoint_manifest", lambda folder: SimpleNamespace(world_size=2))
    rows = [row(1, 50.0, 50.0), row(2, 0.25, 0.125)]
    phases = {number: {"data": shard_folder.name} for number in ("0", "1")}
    run = write_run(tmp_path / "run", rows, phases=phases)
    (run / "environment.json").write_text(json.dumps({"folder": str(shard_folder.parent)}))
    measured = measured_debug(model={**measured_debug().model, "vocab_size": 1000})
    (tmp_path / "proof.json").write_text(json.dumps({"measured": to_json(measured)}))
    monkeypatch.chdir(tmp_path)
    assert "whole step" in steps_of_a_run.describe_steps(run, tmp_path / "proof.json")
