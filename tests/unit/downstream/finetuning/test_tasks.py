"""The nine tasks read GLUE's files as its download leaves them, and two others the JSON Lines of their authors."""

import json

import pytest

from megabert.downstream.finetuning.setup import find_file, find_labelled_files
from megabert.downstream.finetuning.task_kinds import TASK_KINDS
from megabert.downstream.finetuning.tasks import SUITES, find_task, refuse_idle_settings
from megabert.foundation.errors import ConfigError, DataError
from megabert.settings.config.finetune import FinetuneConfig

GLUE = SUITES["glue"]

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
    (example,) = TASK_KINDS[task.kind].read(task, find_file(tmp_path, task.train))
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
    (example,) = TASK_KINDS[task.kind].read(task, find_file(tmp_path, task.train))
    assert (example.text, example.pair, example.label) == ("one", "two", label)


def test_snli_is_read_from_glues_table(tmp_path):
    """Rows have one annotator or five before the label that counts, in files with either header."""
    row = "0\tc\t7n\t( a )\t( b )\t(R a)\t(R b)\tone\ttwo\t{}\tneutral\n"
    names = "index\tcaptionID\tpairID\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    task = find_task("snli")
    for annotators in (1, 5):
        columns = [f"label{number}" for number in range(1, annotators + 1)]
        header = "\t".join([names, "sentence1", "sentence2", *columns, "gold_label"])
        rows = row.format("entailment") + row.format("\t".join(["contradiction"] * 5))
        (tmp_path / "dev.tsv").write_text(f"{header}\n{rows}")
        examples = TASK_KINDS[task.kind].read(task, tmp_path / "dev.tsv")
        assert [(one.text, one.pair, one.label) for one in examples] == [("one", "two", "neutral")] * 2
    (tmp_path / "dev.tsv").write_text(f"{header}\none\ttwo\tneutral\n")
    with pytest.raises(DataError, match=r"dev\.tsv:2: 3 columns, the header has 15"):
        TASK_KINDS[task.kind].read(task, tmp_path / "dev.tsv")


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("squad", ["train-v1.1.json", "dev-v1.1.json"]),
        ("squad2", ["train-v2.0.json", "dev-v2.0.json"]),
        ("snli", ["snli_1.0_train.jsonl", "snli_1.0_dev.jsonl", "snli_1.0_test.jsonl"]),
        ("swag", ["train.csv", "val.csv"]),
    ],
)
def test_folder_is_found_as_its_authors_distribute_it(name, files, tmp_path):
    for file in ("test.csv", "train-v1.1.json", "dev-v1.1.json", *files):
        (tmp_path / file).touch()
    task = find_task(name)
    train, evaluation = find_labelled_files(task, FinetuneConfig(model="m", data=str(tmp_path)))
    found = [train.name, *(path.name for path in evaluation)]
    assert [*found, find_file(tmp_path, task.test).name][: len(files)] == files


@pytest.mark.parametrize(
    ("name", "setting", "says"),
    [
        ("mrpc", "n_best", "--n-best has no effect: it needs kind of task span"),
        ("squad", "null_threshold", "--null-threshold has no effect: it needs task klue_mrc or squad2"),
        ("klue_mrc", "language", "--language has no effect on a task that has rules of its own"),
        ("mrpc", "held_out", "--held-out has no effect on folders"),
    ],
)
def test_settings_without_effect_are_refused(name, setting, says):
    config = FinetuneConfig(model="m", data="d")
    with pytest.raises(ConfigError, match=says):
        refuse_idle_settings({setting: "given"}, [find_task(name)], config, are_folders=True)


def test_task_names_are_checked():
    with pytest.raises(ConfigError, match="did you mean mrpc"):
        find_task("mprc")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no dev_matched\.\*"):
        find_file(tmp_path, ("dev_matched",))
