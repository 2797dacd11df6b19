"""Fine-tunings side by side and their reports, from result folders written by hand."""

import json
import math
from pathlib import Path

import pytest

from megabert.downstream.finetuning.comparison import SetComparison, compare_finetunings
from megabert.downstream.finetuning.grid.grid_results import read_summaries
from megabert.downstream.finetuning.seed_results import FinetuneSettings, summarize
from megabert.foundation.errors import CheckpointError, ConfigError

RIGHT = "yes no yes no yes no".split()  # noqa: SIM905


def write_finetuning(
    folder: Path, said: list[str], *, task: str = "rte", rate: float = 1e-3, words: str = "text"
) -> Path:
    """Write the folder of a finished fine-tuning with one seed and these predictions."""
    seed = folder / "seed_1"
    seed.mkdir(parents=True)
    settings = FinetuneSettings(task=task, settings={"learning_rate": rate}, sha256={}, model="m")
    (folder / "finetune.json").write_text(json.dumps(vars(settings)))
    accuracy = sum(a == b for a, b in zip(RIGHT, said, strict=True)) / len(RIGHT)
    result = {"seed": 1, "learning_rate": rate, "score": accuracy, "examples_per_s": 1.0}
    scores = {"metrics": {"dev": {"accuracy": accuracy}}, "baseline": {"dev": {"accuracy": 0.5}}}
    (seed / "result.json").write_text(json.dumps({**result, **scores}))
    rows = [
        {"line": line, "text": f"{words} {line}", "label": label, "prediction": guess, "correct": label == guess}
        | {"probabilities": {"yes": 0.1, "no": 0.1, guess: 0.5 + line / 100}}
        for line, (label, guess) in enumerate(zip(RIGHT, said, strict=True), 2)
    ]
    (seed / "predictions_dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summarize(folder, task, [1])
    return folder


@pytest.fixture
def two(tmp_path):
    """B fixes the example in line 2 and breaks those in lines 5 and 6."""
    a = write_finetuning(tmp_path / "a", ["no", "no", "yes", "no", "yes", "yes"])
    return a, write_finetuning(tmp_path / "b", ["yes", "no", "yes", "yes", "no", "yes"], rate=3e-3)


def test_what_was_fixed_and_broken_is_counted_and_shown(two, megabert):
    (one,) = compare_finetunings(*two).sets
    assert (one.fixed, one.broken) == ([2], [5, 6])
    assert one.p_value == 1, "one and two of three: a coin does as much"
    printed = megabert("compare", *two, code=6).out
    assert "learning_rate: 0.001 and 0.003" in printed
    assert "rte   dev  accuracy  66.67  50.00  -16.67            50.00" in printed
    assert "3 as good (2 of them right), 1 fixed by B, 2 broken by B" in printed
    assert "line 2: text 2\n    label yes, A said no (0.52), B said yes (0.52)" in printed
    content = json.loads(megabert("compare", *two, "--json", code=6).out)
    assert content["examples"][0]["broken"] == [5, 6]
    assert content["scores"]["rte"]["b"]["dev"]["accuracy"] == 0.5
    megabert("compare", two[0], two[0])


def test_sign_test_is_small_for_one_sided_changes(tmp_path):
    a = write_finetuning(tmp_path / "a", [{"yes": "no", "no": "yes"}[label] for label in RIGHT])
    (one,) = compare_finetunings(a, write_finetuning(tmp_path / "b", RIGHT)).sets
    assert one.p_value == 2 / 2**6


def test_sign_test_of_many_changes_is_the_normal_curve():
    one = SetComparison("rte", "dev", {}, {}, fixed=[*range(49_900)], broken=[*range(50_700)])
    z = (abs(49_900 - 50_700) - 1) / 100_600**0.5
    assert one.p_value == pytest.approx(math.erfc(z / 2**0.5), rel=1e-3)
    assert SetComparison("rte", "dev", {}, {}, fixed=[], broken=[]).p_value == 1


def write_grid(folder: Path, said: list[str]) -> Path:
    """Write the folder of a finished grid of two sets with one cell each."""
    sets = {}
    for name, task in (("rte", "rte"), ("mine", "qnli")):
        cell = write_finetuning(folder / name / "rate_0.001-epochs_3-seed_1", said, task=task)
        summary = json.loads((cell / "results.json").read_text())
        setting = {"learning_rate": 1e-3, "epochs": 3.0, "failed": [], "summary": summary}
        sets[name] = {"task": task, "settings": [setting], "choice": 0}
    (folder / "grid.json").write_text("{}")
    (folder / "results.json").write_text(json.dumps({"sets": sets}))
    return folder


def test_grids_are_compared_set_by_set_and_with_single_runs(tmp_path, megabert):
    a, b = write_grid(tmp_path / "a", RIGHT), write_grid(tmp_path / "b", ["no", *RIGHT[1:]])
    printed = megabert("compare", a, a).out
    assert "mine  dev  accuracy  100.00  100.00   0.00            50.00" in printed
    assert "mine dev, predictions of the best seeds for 6 examples" in megabert("compare", a, b, code=6).out
    shown = megabert("compare", a, b / "rte" / "rate_0.001-epochs_3-seed_1", "--json", code=6).out
    assert list(json.loads(shown)["scores"]) == ["rte"]
    assert list(read_summaries(a)) == ["rte", "mine"]


@pytest.mark.parametrize(
    "content", ["{", '{"sets": 1}', '{"sets": {"rte": {"task": "x", "settings": []}}}', '{"sets": {"rte": {}}}']
)
def test_damaged_results_are_named(two, tmp_path, content):
    path = write_grid(tmp_path / "grid", RIGHT) / "results.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=r"results.json: .*damaged or edited.* Run the same grid again"):
        read_summaries(path.parent)
    path = two[0] / "results.json"  # of a fine-tuning: its parts do not fit
    path.write_text(json.dumps({**json.loads(path.read_text()), "baseline": {}}))
    with pytest.raises(CheckpointError, match=r"results.json: damaged or edited"):
        read_summaries(two[0])


def test_other_tasks_and_other_examples_are_refused(two, tmp_path):
    with pytest.raises(ConfigError, match=r"is of rte, .* of cola: there is nothing to compare"):
        compare_finetunings(two[0], write_finetuning(tmp_path / "c", RIGHT, task="cola"))
    with pytest.raises(ConfigError, match="the examples of dev differ"):
        compare_finetunings(two[0], write_finetuning(tmp_path / "d", RIGHT, words="other"))


@pytest.mark.parametrize("field", ["tags", "answers", "start", "endings"])
def test_corrected_gold_answers_make_other_examples(field, two):
    for folder, value in zip(two, (["B-PER"], ["O"]), strict=True):
        path = folder / "seed_1" / "predictions_dev.jsonl"
        rows = [{**json.loads(line), field: value} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match="the examples of dev differ"):
        compare_finetunings(*two)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]\n",
        b'{"line": 2}\n',
        b"\xff",
        b'{"line": 2, "prediction": "a", "error": "b"}\n',
        b'{"line": 2, "label": [], "prediction": "a", "correct": true, "probabilities": {"a": 1}}\n',
        b'{"line": 2, "label": "a", "prediction": "a", "correct": true, "probabilities": {}}\n',
    ],
)
def test_damaged_predictions_are_named(two, content):
    (two[1] / "seed_1" / "predictions_dev.jsonl").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"predictions_dev.jsonl.* Delete the seed's result.json"):
        compare_finetunings(*two)


def test_report_shows_scores_confusions_and_the_surest_errors(two, megabert):
    printed = megabert("report", two[1], "--examples", "2").out
    assert "dev  accuracy  50.00            50.00" in printed
    assert "dev: 3 of 6 are not exact; the first 2" in printed
    assert printed.index("line 7: text 7") < printed.index("line 6: text 6")
    assert "line 5" not in printed


@pytest.mark.parametrize("words", [["report", "--png", "x.png"], ["report", "--checkpoint", "best"]])
def test_flags_without_effect_on_a_report_are_refused(words, two, megabert):
    said = megabert(*words[:1], two[0], *words[1:], code=2).err
    assert f"{words[1]} has no effect on the report of a fine-tuning" in said
