"""NaN gradients on one rank, ten batches in a row: return to the checkpoint, leave the data out, give up after three;
an infinity in one batch: leave it out.

The faults are in ``programs/faults.py``.
"""

import json

import pytest
from support.runs import Run

from megabert.checkpoints.format import read_checkpoint_manifest


def test_run_rolls_back_and_leaves_the_bad_data_out(shards, tmp_path):
    flags = {"phases.0.global_batch_size": 4, "checkpoint.every_steps": 3, "checkpoint.keep_last": 9}
    run = Run(tmp_path / "run", shards, ranks=2, flags=flags, fault="poison")
    assert run.finish() == 2, run.output[-4000:]

    first = (
        "rollback 1: 10 batches in a row were not finite at step 4; continuing at step 3 without instances "
        "epoch 0: 16 to"
    )
    assert first in run.output
    assert "gradients not finite on rank 1 in" in run.output
    rows = [row for row in run.rows() if "train/loss" in row]
    assert [row["step"] for row in rows] == list(range(1, 9)), "every step is logged once"
    assert rows[-1]["train/rollbacks"] == 1
    assert rows[-1]["train/skipped_steps"] == 11  # ten, and the eleventh after the range that was left out
    stored = read_checkpoint_manifest(run.run_dir / "checkpoints" / "step_00000006")
    assert [*stored.trainer_state["positions"].values()] == [{"epoch": 0, "offset": 68, "skipped": [[0, 16, 56]]}]

    assert "after 3 rollbacks to step 8" in run.output
    status = json.loads((run.run_dir / "status.json").read_text())
    assert (status["status"], status["exit_code"], status["step"]) == ("failed", 2, 8)
    assert f"--fork {run.run_dir}@8" in status["error"]


def test_spike_sends_the_run_back_where_the_rule_is_on(shards, tmp_path):
    rule = {"rollback.spike_ratio": 3, "rollback.spike_steps": 3, "rollback.spike_window": 4}
    flags = {"phases.0.global_batch_size": 4, "checkpoint.keep_last": 9, **rule}
    run = Run(tmp_path / "run", shards, flags=flags, fault="spike")
    rows = [row for row in run.finish_well() if "train/loss" in row]

    assert "spike: loss" in run.output
    # Checkpoints were due at step 6, the first spike, and at step 8, the third one and the end of the phase.
    assert "are deleted" not in run.output, "none was written"
    reason = "rollback 1: 3 losses in a row were above 3 times their running median at step 8; continuing at step 3"
    assert f"{reason} without instances epoch 0: 16 to 19, epoch 0: 20 to 23" in run.output
    assert [row["step"] for row in rows] == list(range(1, 14)), "every step is logged once"
    assert max(row["train/loss"] for row in rows) < 2 * rows[0]["train/loss"]
    assert [row["train/rollbacks"] for row in rows][2:] == [0] + [1] * 10
    stored = read_checkpoint_manifest(run.run_dir / "checkpoints" / "step_00000006")
    assert [*stored.trainer_state["positions"].values()] == [{"epoch": 0, "offset": 40, "skipped": [[0, 16, 32]]}]


def test_a_batch_with_an_infinity_is_skipped_in_8_bits_as_in_16(shards, tmp_path):
    flags = {"phases.0.global_batch_size": 4, "phases.0.steps": 5, "phases.1.steps": 1}
    losses = {}
    for precision in ("bf16", "fp8"):
        own = {**flags, "precision": precision}
        run = Run(tmp_path / precision, shards, flags=own, fault="put_infinity")
        rows = [row for row in run.finish_well() if "train/loss" in row]
        assert run.output.count("step skipped: loss ") == 1
        assert "gradients not finite on rank 0 in" in run.output
        assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
        assert [row["train/skipped_steps"] for row in rows] == [0, 0, 1, 1, 1, 1]
        assert rows[-1]["train/rollbacks"] == 0
        losses[precision] = [row["train/loss"] for row in rows]
        # Four matrices in each of two layers, and their transposes, after six steps and the batch between them.
        assert run.output.count(f"{16 if precision == 'fp8' else 0} casts of weights") == 7
    assert losses["fp8"] == pytest.approx(losses["bf16"], rel=2e-2)
    assert losses["fp8"] != losses["bf16"]
