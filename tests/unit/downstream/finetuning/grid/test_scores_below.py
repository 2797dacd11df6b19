"""The fine-tunings that lie in a run's folder, each with its score and baseline."""

import json

from support.finetunings import summary, write_summary

from megabert.downstream.finetuning.grid.grid_results import find_finetunings, render_scores_below
from megabert.downstream.finetuning.seed_results import SUMMARY_NAME


def write_finetuning(folder, task="mrpc", score=0.5):
    own = {"deviation": {"dev": {"accuracy": 0.01}}, "baseline": {"dev": {"accuracy": 0.684}}}
    return write_summary(folder, summary(task, {"dev": {"accuracy": score}}, **own))


def test_each_score_stands_beside_its_baseline(tmp_path):
    write_finetuning(tmp_path / "tuned" / "mrpc", score=0.75)
    (write_finetuning(tmp_path / "rte", "rte") / SUMMARY_NAME).unlink()
    lines = [line.split() for line in render_scores_below(tmp_path).splitlines()]
    assert lines[2][0] == "rte"
    assert "unfinished" in lines[2]
    assert lines[3] == ["tuned/mrpc", "mrpc", "accuracy", "75.00", "+-", "1.00", "68.40", "2"]


def test_names_are_written_once_per_fine_tuning(tmp_path):
    for name in ("a", "b"):
        write_finetuning(tmp_path / name)
        path = tmp_path / name / SUMMARY_NAME
        content = json.loads(path.read_text())
        for part in ("mean", "deviation", "baseline"):
            content[part]["dev"]["f1"] = 0.5
        path.write_text(json.dumps(content))
    starts = [line[:27].split() for line in render_scores_below(tmp_path).splitlines()[2:]]
    assert starts == [["a", "mrpc", "accuracy"], ["f1"], ["b", "mrpc", "accuracy"], ["f1"]]


def test_run_without_fine_tunings_has_no_table(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert render_scores_below(tmp_path) == ""


def test_folders_inside_a_fine_tuning_and_links_are_left_out(tmp_path):
    write_finetuning(tmp_path / "mrpc")
    write_finetuning(tmp_path / "mrpc" / "seed_1")
    (tmp_path / "link").symlink_to(tmp_path / "mrpc")
    assert find_finetunings(tmp_path) == [tmp_path / "mrpc"]
