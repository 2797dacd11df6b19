import json
import re

import pytest
import yaml
from support.run_folders import eval_row, train_row, write_run

from megabert.tooling.reports.compare import compare_runs, relative_difference


def rows(*losses: float) -> list[dict]:
    return [train_row(step, loss) for step, loss in enumerate(losses, start=1)]


@pytest.fixture
def runs(tmp_path):
    a = write_run(tmp_path / "a", [*rows(8.0, 7.0, 6.0), eval_row(3, 6.0)])
    b = write_run(tmp_path / "b", [*rows(8.0, 7.0001, 5.0), eval_row(3, 6.0)], seed=7)
    return a, b


def test_first_and_largest_difference_are_found(runs):
    found = compare_runs(*runs)
    assert found.first == ("train/loss", 2, 7.0, 7.0001)
    loss = next(tag for tag in found.tags if tag.tag == "train/loss")
    assert loss.largest == (3, 6.0, 5.0)
    assert relative_difference(*loss.largest[1:]) == pytest.approx(1 / 6)
    assert found.config == {"seed": (42, 7)}
    assert not found.are_equal


def test_exit_code_and_page(runs, megabert):
    a, b = map(str, runs)
    shown = megabert("compare", a, b, code=6).out
    assert "first difference: step 2, train/loss: 7 and 7.0001" in shown
    assert "* seed: 42 and 7" in shown
    assert "equal at all steps: eval/loss" in shown
    assert "the values that both have are equal" in megabert("compare", a, a).out


def test_tolerance_and_json(runs, megabert):
    a, b = map(str, runs)
    report = json.loads(megabert("compare", a, b, "--tolerance", "0.2", "--json").out)
    assert report["equal"]
    assert report["tags"]["train/loss"]["first"] is None


def test_number_that_is_not_finite_is_null_in_json(tmp_path, megabert):
    a = write_run(tmp_path / "a", rows(8.0, float("nan")))
    b = write_run(tmp_path / "b", rows(8.0, 7.0))
    report = json.loads(megabert("compare", a, b, "--json", code=6).out, parse_constant=pytest.fail)  # NaN is no JSON
    assert report["tags"]["train/loss"]["first"] == [2, None, 7.0]


def test_run_that_is_shorter_is_not_equal(tmp_path, megabert):
    a = write_run(tmp_path / "a", rows(8.0, 7.0))
    b = write_run(tmp_path / "b", rows(8.0))
    found = compare_runs(a, b)
    assert (found.steps, found.common_steps, found.first, found.are_equal) == ((2, 1), 1, None, False)
    megabert("compare", a, b, code=6)


def test_tag_of_one_run_alone_makes_them_different(tmp_path, megabert):
    a = write_run(tmp_path / "a", [*rows(8.0, 7.0, 6.0), eval_row(3, 6.0)])
    b = write_run(tmp_path / "b", [*rows(8.0, 7.0), train_row(3, 6.0, **{"train/spikes": 1}), eval_row(2, 6.0)])
    found = compare_runs(a, b)
    assert found.first is None, "what both have is equal"
    assert (found.one_sided["eval/loss"], found.one_sided["train/spikes"]) == ((1, 1), (0, 1))
    assert not found.are_equal
    assert "eval/loss: at 1 of these steps in A alone, at 1 in B alone" in megabert("compare", a, b, code=6).out


def test_diverged_runs_are_not_equal(tmp_path, megabert):
    a, b = (write_run(tmp_path / name, rows(8.0, float("nan"))) for name in "ab")
    assert "first difference: step 2, train/loss: nan and nan" in megabert("compare", a, b, code=6).out


def test_rates_and_checkpoints_that_a_disk_refused_do_not_make_runs_different(tmp_path):
    a = write_run(tmp_path / "a", rows(8.0))
    more = {"perf/sequences_per_s": 32.0, "train/failed_checkpoints": 3}
    found = compare_runs(a, write_run(tmp_path / "b", [train_row(1, 8.0, **more)]))
    assert found.are_equal
    assert found.rates["perf/sequences_per_s"] == (64.0, 32.0)


def test_rates_are_those_of_the_steps_that_both_logged_in_the_same_phase(tmp_path):
    fast = [train_row(step, 8.0, **{"perf/sequences_per_s": 60.0}) for step in (1, 2)]
    slow = [train_row(step, 8.0, phase=2, **{"perf/sequences_per_s": 10.0}) for step in range(3, 8)]
    whole, stopped = write_run(tmp_path / "whole", fast + slow), write_run(tmp_path / "stopped", fast)
    longer = write_run(tmp_path / "longer", [*fast, train_row(3, 8.0, **{"perf/sequences_per_s": 90.0})])
    for other in (stopped, longer):
        assert compare_runs(other, whole).rates["perf/sequences_per_s"] == (60.0, 60.0)


def test_what_is_not_finite_equals_nothing():
    nan = float("nan")
    assert relative_difference(nan, nan) == relative_difference(float("inf"), float("inf")) == float("inf")
    assert relative_difference(nan, 1.0) == float("inf")
    assert relative_difference(-2.0, 2.0) == 2


def test_folder_without_steps_is_refused(tmp_path, megabert):
    a = write_run(tmp_path / "a", [])
    assert "no step has been logged" in megabert("compare", a, a, code=4).err


def test_phases_are_compared_field_by_field(tmp_path, megabert):
    a, b = (write_run(tmp_path / name, rows(8.0)) for name in "ab")
    config = yaml.safe_load((b / "config.yaml").read_text())
    config["phases"][0]["learning_rate"] = 0.5
    config["phases"].append({"max_seq_length": 512, "steps": 7, "global_batch_size": 16, "learning_rate": 0.25})
    (b / "config.yaml").write_text(yaml.safe_dump(config))
    shown = megabert("compare", a, b).out
    assert re.search(r"\* phases\.0\.learning_rate: \S+ and 0.5\n", shown)
    section = r"\(max_seq_length 512, steps 7, global_batch_size 16, learning_rate 0\.25\)"
    assert re.search(rf"\* phases\.\d: None and {section}\n", shown)
    assert max(map(len, shown.splitlines())) < 160 + len(str(tmp_path))
