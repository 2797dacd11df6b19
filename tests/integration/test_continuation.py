"""Resumed from an earlier checkpoint a run has the losses of the first time, bit for bit, with dropout on."""

import shutil

import pytest
from integration.runs import Run

from megabert.checkpoints.format import steps_in


def check_continuation(run: Run, step: int) -> int:
    """Run to the end, delete the checkpoints after a step, run again; return how many steps were compared."""
    run.flags |= {"checkpoint.keep_last": 999, "model.hidden_dropout_prob": 0.1}
    run.finish_well()
    expected, metrics = run.losses(), run.run_dir / "metrics.jsonl"
    checkpoints = run.run_dir / "checkpoints"
    for newer in [saved for saved in steps_in(checkpoints) if saved > step]:
        shutil.rmtree(checkpoints / f"step_{newer:08d}")
    assert steps_in(checkpoints)[0] == step
    metrics.write_text("")  # whatever is in it afterwards is new
    run.finish_well()
    assert list(run.losses()) == list(range(step + 1, max(expected) + 1))
    assert run.losses() == {later: loss for later, loss in expected.items() if later > step}
    return len(run.losses())


def test_bfloat16_resumes_bit_for_bit(shards, tmp_path):
    assert check_continuation(Run(tmp_path / "run", shards, flags={"precision": "bf16"}), step=6) == 7


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_continuation_of_a_hundred_steps_is_bit_for_bit(shards, tmp_path, precision, ranks):
    flags = {"precision": precision, "phases.0.steps": 100, "phases.1.steps": 30, "checkpoint.every_steps": 10}
    compared = check_continuation(Run(tmp_path / "run", shards, ranks=ranks, flags=flags), step=30)
    print(f"\n{precision}, {ranks} ranks, dropout 0.1: the losses of steps 31 to 130 are the same bit for bit")
    assert compared == 100
