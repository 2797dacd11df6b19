"""A rank that falls asleep: all ranks write their stacks and end. A rank that is slow for a reason is waited for."""

import json
import re

import pytest
from support.runs import Run
from support.soak import in_soak


@pytest.mark.parametrize("launcher", ["forked", *in_soak("deepspeed")])
def test_hung_run_ends_with_the_stacks_of_all_ranks(shards, tmp_path, launcher):
    flags = {"watchdog.min_step_s": 2}
    hung = Run(tmp_path / "run", shards, ranks=2, launcher=launcher, flags=flags, fault="fall_asleep")
    assert hung.finish() == 76, hung.output[-4000:]
    logs = [(hung.run_dir / "logs" / f"rank_00{rank}.log").read_text() for rank in (0, 1)]
    assert all("hangs: making a step takes more than" in log for log in logs)
    assert "in fall_asleep" in logs[1]
    assert "in sum_over_ranks" in logs[0] or "in update" in logs[0]
    status = json.loads((hung.run_dir / "status.json").read_text())
    assert (status["status"], status["exit_code"]) == ("failed", 76)
    assert status["hangs"]["count"] == 1
    assert re.search(r"the others wait for rank 1 \(.+\), making a step at step 6 for \d+ s", status["error"])


def test_a_profile_takes_longer_than_a_step_may(shards, tmp_path):
    # A busy machine may need seconds for a step: torch's profiler is loaded in one.
    flags = {"watchdog.min_step_s": 5, "logging.profile_steps": "5-6"}
    run = Run(tmp_path / "run", shards, ranks=2, flags=flags, fault="close_slowly")
    assert run.finish() == 0, run.output[-4000:]
    names = sorted(path.name for path in (run.run_dir / "profile").glob("*"))
    assert names == ["rank_000_steps_5-6.json.gz", "rank_000_steps_5-6.txt"]
    seconds = {row["step"]: row["perf/step_s"] for row in run.rows() if "perf/step_s" in row}
    assert seconds[7] < 5, "writing took 6 s, and counts in no rate"
