"""``--fork RUN@STEP``: a new run that begins where another one stood, under another configuration."""

import json

from integration.runs import TINY, Run

from megabert.distributed.checkpoints import find_checkpoint, read_masters
from megabert.training.run_folder import read_config

SAME: dict[str, object] = dict.fromkeys(TINY)  # every field is the forked run's


def forked(origin: Run, step: int, **flags: object) -> Run:
    flags = {**SAME, "data.path": None, "fork": f"{origin.run_dir}@{step}", **flags}
    return Run(origin.run_dir.with_name("fork"), origin.data, flags=flags, recipe=None)


def test_fork_goes_on_bit_for_bit_until_something_is_changed(shards, tmp_path):
    origin = Run(tmp_path / "origin", shards, flags={"checkpoint.keep_last": 9})
    origin.finish_well()
    # The schedule is another one from here on, so only the first update's loss is the same.
    fork = forked(origin, 6, **{"phases.0.steps": 10, "phases.0.learning_rate": 1e-3})
    fork.finish_well()
    assert min(fork.losses()) == 7
    assert fork.losses()[7] == origin.losses()[7]
    assert fork.losses()[8] != origin.losses()[8]
    assert max(fork.losses()) == 15
    assert "of which this is a fork: phases.0.learning_rate: 0.02 -> 0.001" in fork.output
    old, new = (read_masters(find_checkpoint(run.run_dir / "checkpoints", 6)) for run in (origin, fork))
    assert all(new[name].equal(tensor) for name, tensor in old.items())
    assert read_config(fork.run_dir).fork == f"{origin.run_dir}@6"
    assert json.loads((fork.run_dir / "status.json").read_text())["fork"] == f"{origin.run_dir}@6"

    output = fork.output
    assert fork.finish() == 0, "the same command resumes"
    assert "is done: 15 steps" in fork.output[len(output) :]
    again = forked(origin, 3)
    assert again.finish() == 4, "the folder holds another run"
    assert f"fork: '{origin.run_dir}@6' -> '{origin.run_dir}@3'" in again.output
