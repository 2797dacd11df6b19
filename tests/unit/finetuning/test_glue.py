"""The nine tasks read GLUE's files as its download leaves them, and two others the JSON Lines of their authors."""

import json

import pytest

from megabert.cli import main
from megabert.errors import ConfigError, DataError
from megabert.finetuning.glue import run_glue, save_glue
from megabert.finetuning.results import Summary
from megabert.finetuning.setup import find_file
from megabert.finetuning.task_kinds import TASK_KINDS
from megabert.finetuning.tasks import GLUE, find_task

# Header (none for CoLA) and one row of each file, the texts being "one" and "two".
FILES = {
    "cola": (None, "gj04\t1\t\tone"),
    "sst2": ("sentence\tlabel", "one\t1"),
    "mrpc": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t7\t8\tone\ttwo"),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\tone\ttwo\t1"),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tg\tf\t2012\t1\tnone\tnone\tone\ttwo\t1",
    ),
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\t1n\tg\t( a )\t( b )\t(R a)\t(R b)\tone\ttwo\tneutral\tneutral",
    ),
    "qnli": ("index\tquestion\tsentence\tlabel", "0\tone\ttwo\tentailment"),
    "rte": ("index\tsentence1\tsentence2\tlabel", "0\tone\ttwo\tnot_entailment"),
    "wnli": ("index\tsentence1\tsentence2\tlabel", "0\tone\ttwo\t1"),
}
SINGLE = ("cola", "sst2")


@pytest.mark.parametrize("task", GLUE, ids=lambda task: task.name)
def test_task_reads_its_file(task, tmp_path):
    header, row = FILES[task.name]
    (tmp_path / "train.tsv").write_text("".join(f"{line}\n" for line in (header, row) if line is not None))
    (example,) = TASK_KINDS[task.kind].read(task, find_file(tmp_path, (task.train,)))
    assert example.text == "one"
    assert example.pair == (None if task.name in SINGLE else "two")
    assert task.labels is None or example.label in task.labels


LINES = {
    "snli": ({"sentence1": "one", "sentence2": "two", "gold_label": "neutral", "pairID": "7"}, "neutral"),
    "boolq": ({"question": "one", "passage": "two", "title": "t", "answer": True}, "true"),
}


@pytest.mark.parametrize("name", LINES)
def test_task_reads_its_json_lines(name, tmp_path):
    row, label = LINES[name]
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    task = find_task(name)
    (example,) = TASK_KINDS[task.kind].read(task, find_file(tmp_path, (task.train,)))
    assert (example.text, example.pair, example.label) == ("one", "two", label)


def test_task_names_are_checked():
    with pytest.raises(ConfigError, match="did you mean mrpc"):
        find_task("mprc")


def test_folder_without_tasks_is_named(tmp_path):
    with pytest.raises(DataError, match="CoLA, SST-2"):
        run_glue(tmp_path, tmp_path / "out", [])


def test_several_ranks_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="--launcher"):
        run_glue(tmp_path, tmp_path / "out", [])


def test_missing_setting_is_named(capsys):
    assert main(["finetune", "glue", "--model", "x"]) == 2
    assert "data" in capsys.readouterr().err


def test_settings_of_glue_are_shown_and_nothing_starts(tmp_path, capsys):
    (tmp_path / "settings.yaml").write_text(f"data: {tmp_path / 'glue'}\nepochs: 7\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    words = ["finetune", "glue", "--model", str(tmp_path / "model"), "--config", str(tmp_path / "settings.yaml")]
    assert main([*words, "--print-config"]) == 0
    shown = capsys.readouterr().out
    assert f"data: {tmp_path / 'glue'}" in shown
    assert "epochs: 7" in shown
    assert main(words) == 3
    assert f"{tmp_path / 'glue'}: no task of GLUE there" in capsys.readouterr().err, "the file's data, too"


def test_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no dev_matched\.\*"):
        find_file(tmp_path, ("dev_matched",))


def summary_of(task, mean, deviation):
    baseline = {name: dict.fromkeys(metrics, 0.5) for name, metrics in mean.items()}
    own = {"mean": mean, "deviation": deviation, "baseline": baseline}
    return Summary(task=task, seeds=[1, 2], examples_per_s=1.0, best_seed=1, best_model="m", **own)


def test_table_averages_metrics_and_tasks_and_is_saved(tmp_path):
    summaries = {
        "mrpc": summary_of("mrpc", {"dev": {"accuracy": 0.8, "f1": 0.9}}, {"dev": {"accuracy": 0.01, "f1": 0.0}}),
        "mnli": summary_of(
            "mnli",
            {"dev_matched": {"accuracy": 0.7}, "dev_mismatched": {"accuracy": 0.6}},
            {"dev_matched": {"accuracy": 0.0}, "dev_mismatched": {"accuracy": 0.0}},
        ),
    }
    table = save_glue(tmp_path, summaries)
    lines = table.splitlines()
    assert "points" in lines[0]
    assert lines[2].split() == ["MRPC", "dev", "accuracy", "80.00", "+-", "1.00", "50.00"]
    assert lines[-1].split() == ["mean", "2", "of", "9", "tasks", "75.00"]
    assert table in (tmp_path / "glue.md").read_text()
    assert json.loads((tmp_path / "glue.json").read_text())["tasks"]["mrpc"]["mean"]["dev"]["f1"] == 0.9
