"""Resumed from an earlier checkpoint a run has the losses of the first time, bit for bit, with dropout on."""

import shutil
from pathlib import Path

import pytest
import torch
from support.runs import Run
from support.soak import in_soak

from megabert.checkpoints.format import steps_in
from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.downstream.export.huggingface import read_huggingface
from megabert.downstream.export.sources import open_source
from megabert.downstream.publish.run_folder import export_run


def check_continuation(run: Run, step: int) -> int:
    """Run to the end, delete the checkpoints after a step, run again; return how many steps were compared."""
    run.flags |= {"checkpoint.keep_last": 999, "model.hidden_dropout_prob": 0.1}
    run.finish_well()
    expected, held_out, metrics = run.losses(), run.held_out_rows(), run.run_dir / "metrics.jsonl"
    checkpoints = run.run_dir / "checkpoints"
    for newer in [saved for saved in steps_in(checkpoints) if saved > step]:
        shutil.rmtree(checkpoints / f"step_{newer:08d}")
    assert steps_in(checkpoints)[0] == step
    metrics.write_text("")  # whatever is in it afterwards is new
    run.finish_well()
    assert list(run.losses()) == list(range(step + 1, max(expected) + 1))
    assert run.losses() == {later: loss for later, loss in expected.items() if later > step}
    assert run.held_out_rows() == [row for row in held_out if row["step"] > step]
    return len(run.losses())


# A batch that grows beyond step 6, a decay, a second phase over the same shards, an average that is scored, z-loss.
SCHEDULES = {
    "phases.0.initial_batch_size": 3,
    "phases.0.batch_warmup_steps": 7,
    "phases.0.decay": "cosine",
    "phases.1.max_seq_length": 64,
    "average.decay": 0.9,
    "validation.weights": "average",
    "z_loss": 1e-3,
}


@pytest.mark.parametrize("precision", ["fp8", *in_soak("bf16")])
def test_few_bits_with_every_schedule_resume_bit_for_bit(shards, tmp_path, precision):
    run = Run(tmp_path / "run", shards, flags={"precision": precision, **SCHEDULES})
    assert check_continuation(run, step=6) == 7
    rows = [row for row in run.rows() if "train/loss" in row]
    assert [row["train/global_batch_size"] for row in rows] == [10, 12, 7, 7, 7, 7, 7]
    assert rows[-1]["progress/samples"] == 3 + 4 + 5 + 6 + 8 + 9 + 10 + 12 + 5 * 7
    check_best_is_the_average(run.run_dir, tmp_path / "model")


def check_best_is_the_average(run_dir: Path, folder: Path) -> None:
    """The best checkpoint was chosen by the average's score, so the average is what is exported and opened as best."""
    export_run(run_dir, folder, checkpoint="best")
    checkpoint, name = find_checkpoint(run_dir / "checkpoints", "best"), "bert.embeddings.position_embeddings.weight"
    average, trained = (read_masters(checkpoint, average=is_average)[name] for is_average in (True, False))
    assert torch.equal(read_huggingface(folder).state[name], average)
    assert torch.equal(open_source(str(run_dir), "best").weights.read()[name], average)
    assert not torch.equal(average, trained)
    export_run(run_dir, folder, checkpoint="best", weights="trained")
    assert torch.equal(read_huggingface(folder).state[name], trained)


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
def test_continuation_of_a_hundred_steps_is_bit_for_bit(shards, tmp_path, precision, ranks):
    flags = {"precision": precision, "phases.0.steps": 100, "phases.1.steps": 30, "checkpoint.every_steps": 10}
    compared = check_continuation(Run(tmp_path / "run", shards, ranks=ranks, flags=flags), step=30)
    print(f"\n{precision}, {ranks} ranks, dropout 0.1: the losses of steps 31 to 130 are the same bit for bit")
    assert compared == 100
