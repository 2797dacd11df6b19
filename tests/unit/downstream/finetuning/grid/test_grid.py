"""Whole grids: cells like single runs, kills, failures, the choice, test sets, and what is refused."""

import contextlib
import io
import json
import random
import re
import shutil
from pathlib import Path

import pytest
from forked.client import run_command
from unit.downstream.finetuning.conftest import sentence, write_rte

from megabert.cli import main
from megabert.downstream.finetuning.grid import grid as grid_module
from megabert.downstream.finetuning.rates import RATES
from megabert.downstream.finetuning.saved_model import rescore

pytestmark = pytest.mark.usefixtures("without_gpu")
FLAGS = "--max-seq-length 32 --global-batch-size 8 --seed 5 --device cpu --epochs 2".split()  # noqa: SIM905


def forked(commands, *, logs, slots):
    """Run cells in forks of a process that has imported everything, in place of processes of their own."""
    for number, (command, log) in enumerate(zip(commands, logs, strict=True)):
        yield number, run_command("megabert", command[3:], log.with_suffix(".out"), stderr=log)


def words_of(sets_dir, model_dir, out, *flags: str) -> list[str]:
    words = ["finetune", "rte", "classification=own", "--model", str(model_dir), "--data", str(sets_dir)]
    return [*words, "--output-dir", str(out), *FLAGS, "--seeds", "2", "--learning-rates", "3e-3", "1e-4", *flags]


@pytest.fixture(scope="module")
def finished(sets_dir, model_dir, tmp_path_factory) -> tuple[Path, str]:
    """A grid of two sets, two rates and two seeds, and what it printed."""
    out, printed = tmp_path_factory.mktemp("out") / "grid", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(grid_module, "run_children", forked)
        assert main([*words_of(sets_dir, model_dir, out), "--processes", "2"]) == 0
    return out, printed.getvalue()


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    return shutil.copytree(finished[0], tmp_path / "grid")


def comparable(result: dict) -> dict:
    """Return a set's results without absolute paths and speeds, which a copy that runs a cell again has not."""
    for one in (*(setting["summary"] for setting in result["settings"]), result["test"] or {}):
        for name in ("best_model", "examples_per_s"):
            one.pop(name, None)
    return result


def sets_of(out: Path) -> dict:
    return json.loads((out / "results.json").read_text())["sets"]


def test_choice_has_the_best_mean_and_stands_in_every_table(finished):
    out, printed = finished
    for name, one in sets_of(out).items():
        means = {}
        for setting in one["settings"]:
            folder = f"rate_{setting['learning_rate']:g}-epochs_2-seed_"
            results = [out / name / f"{folder}{seed}" / f"seed_{seed}" / "result.json" for seed in (5, 6)]
            scores = [json.loads(path.read_text())["score"] for path in results]
            means[setting["learning_rate"]] = sum(scores) / 2
            assert setting["summary"]["score"] == pytest.approx(sum(scores) / 2)
            assert setting["summary"]["score_deviation"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)
        assert one["settings"][one["choice"]]["learning_rate"] == max(means, key=means.get) == 3e-3
    tables = printed.strip().split("\n\n")
    assert all(table in (out / "results.md").read_text() for table in tables)
    assert re.search(r"rte +dev +accuracy +\S+ \+- \S+ +51.22 +0.003 +2", tables[0]), "21 of 41 have the same label"
    assert re.search(r"mean +2 of 2 sets +\S+", tables[0])
    assert tables[1].count("chosen") == 2
    assert (out / "results.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.soak
def test_cells_in_processes_of_their_own_end_as_in_forks(finished, sets_dir, model_dir, tmp_path, megabert):
    megabert(*words_of(sets_dir, model_dir, tmp_path / "grid"), "--processes", "2")
    results = [sets_of(folder).values() for folder in (tmp_path / "grid", finished[0])]
    # The sources of a test's score are hashes of files with speeds in them.
    own, forks = ([comparable(one | {"test_sources": None}) for one in sets] for sets in results)
    assert own == forks


def test_cells_equal_single_runs_bit_for_bit(finished, sets_dir, model_dir, tmp_path):
    words = ["finetune", "rte", "--model", str(model_dir), "--data", str(sets_dir / "RTE"), "--output-dir"]
    single = [*words, str(tmp_path / "single"), *FLAGS, "--seed", "6", "--learning-rate", "3e-3"]
    assert run_command("megabert", single, tmp_path / "printed", stderr=tmp_path / "log") == 0
    mine, other = finished[0] / "rte" / "rate_0.003-epochs_2-seed_6" / "seed_6", tmp_path / "single" / "seed_6"
    for name in ("model/model.safetensors", "predictions_dev.jsonl"):
        assert (mine / name).read_bytes() == (other / name).read_bytes()
    losses = [re.findall(r'"train/loss": \S+', (one / "metrics.jsonl").read_text()) for one in (mine, other)]
    assert losses[0] == losses[1]


def test_test_set_is_scored_with_the_choice_as_evaluate_does(finished, sets_dir, megabert):
    out, _ = finished
    own = sets_of(out)["own"]
    scores = []
    for seed in (5, 6):
        model = out / "own" / f"rate_0.003-epochs_2-seed_{seed}" / f"seed_{seed}" / "model"
        printed = megabert("evaluate", "--model", model, "--data", sets_dir / "own" / "test.tsv").out
        scores.append(float(printed.splitlines()[2].split()[1]))
    assert 100 * own["test"]["mean"]["test"]["accuracy"] == pytest.approx(sum(scores) / 2, abs=0.01)
    assert own["test"]["baseline"]["test"]["accuracy"] == pytest.approx(16 / 31)
    assert sets_of(out)["rte"]["test"] is None


def test_killed_grid_runs_what_is_missing_and_scores_no_test_again(copied, sets_dir, model_dir, monkeypatch, megabert):
    before, ran = sets_of(copied), []
    monkeypatch.setattr(grid_module, "rescore", None)
    monkeypatch.setattr(grid_module, "run_children", lambda given, **other: ran.extend(given) or forked(given, **other))
    for seed in (6, 5):  # killed twice
        cell = copied / "own" / f"rate_0.0001-epochs_2-seed_{seed}"
        left = [copied / ".results.md.0123abcd.tmp", copied / "own" / f".{cell.name}.yaml.0123abcd.tmp"]
        for path in left:  # what a kill leaves of a file that was being written
            path.write_text("{")
        (cell / f"seed_{seed}" / "result.json").unlink()  # what a killed cell leaves: everything but its last file
        ran.clear()
        megabert(*words_of(sets_dir, model_dir, copied))
        assert [Path(command[command.index("--output-dir") + 1]) for command in ran] == [cell]
        assert not any(path.exists() for path in left)
    assert comparable(sets_of(copied)["own"]) == comparable(before["own"])


@pytest.mark.soak
def test_models_that_were_trained_again_score_the_test_set_again(copied, sets_dir, model_dir, monkeypatch, megabert):
    (copied / "own" / "rate_0.003-epochs_2-seed_6" / "seed_6" / "result.json").unlink()
    scored = []
    monkeypatch.setattr(grid_module, "rescore", lambda *of, **others: scored.append(of) or rescore(*of, **others))
    monkeypatch.setattr(grid_module, "run_children", forked)
    words = words_of(sets_dir, model_dir, copied)
    for seeds in (2, 0):  # both models of the choice, and none once that is known
        megabert(*words)
        assert len(scored) == seeds
        scored.clear()


def test_folder_records_the_task_of_each_set(copied, sets_dir, model_dir, megabert):
    words = words_of(sets_dir, model_dir, copied)
    cell = copied / "own" / "rate_0.003-epochs_2-seed_5" / "finetune.json"
    cell.write_text(json.dumps({**json.loads(cell.read_text()), "task": "regression"}))
    assert "7 of them finished" in megabert(*words, "--dry-run").out
    recorded = json.loads((copied / "grid.json").read_text())
    assert recorded["tasks"] == {"rte": "rte", "own": "classification"}
    (copied / "grid.json").write_text(json.dumps({**recorded, "tasks": {"own": "regression", "left": "rte"}}))
    assert "tasks.own: 'regression' -> 'classification'" in megabert(*words, code=4).err


def test_sets_that_a_call_leaves_out_stay_in_the_results(copied, sets_dir, model_dir, monkeypatch, megabert):
    before = sets_of(copied)
    monkeypatch.setattr(grid_module, "run_children", forked)
    words = words_of(sets_dir, model_dir, copied)
    printed = megabert(*words[:1], *words[2:], "--seeds", "1").out
    after = sets_of(copied)
    assert after["rte"] == before["rte"]
    assert after["own"]["settings"][0]["summary"]["seeds"] == [5]
    assert re.search(r"mean +2 of 2 sets", printed)


def test_damaged_results_are_made_anew(copied, sets_dir, model_dir, megabert):
    before = sets_of(copied)
    (copied / "results.json").write_text("{")
    assert "results.json" in (said := megabert(*words_of(sets_dir, model_dir, copied)).err)
    assert "sets left out of this call return once named" in said
    after = sets_of(copied)
    best = after["own"]["settings"][0]["summary"]["best_model"]
    assert Path(best).is_relative_to(copied), "before, it was in the folder that this one is a copy of"
    assert [*map(comparable, after.values())] == [*map(comparable, before.values())]


def with_mnli(sets_dir: Path, folder: Path) -> Path:
    """Write a copy of some sets with MNLI among them."""
    rng, labels = random.Random(3), ("entailment", "neutral", "contradiction")
    shutil.copytree(sets_dir, folder, dirs_exist_ok=True)
    (folder / "MNLI").mkdir()
    for stem, count in (("train", 60), ("dev_matched", 12), ("dev_mismatched", 12)):
        rows = [f"{sentence(rng)}\t{sentence(rng, 'good')}\t{labels[i % 3]}\n" for i in range(count)]
        (folder / "MNLI" / f"{stem}.tsv").write_text("sentence1\tsentence2\tgold_label\n" + "".join(rows))
    return folder


def test_rte_starts_from_the_best_model_of_mnli(sets_dir, model_dir, tmp_path, monkeypatch, megabert):
    with_mnli(sets_dir, tmp_path)
    monkeypatch.setattr(grid_module, "run_children", forked)
    words = ["finetune", "rte", "mnli", "--model", str(model_dir), "--data", str(tmp_path), *FLAGS[:-2]]
    words += ["--epochs", "1"]
    grid = [*words, "--output-dir", str(tmp_path / "out"), "--learning-rates", "1e-3", "3e-3", "--start-from", "mnli"]
    megabert(*grid)
    sets = sets_of(tmp_path / "out")
    best = sets["mnli"]["settings"][sets["mnli"]["choice"]]["summary"]["best_model"]
    cells = [tmp_path / "out" / "rte" / f"rate_{rate}-epochs_1-seed_5" for rate in (0.001, 0.003)]
    assert [json.loads((cell / "finetune.json").read_text())["model"] for cell in cells] == [best, best]
    assert all(f"tensors from {best}" in cell.with_name(f"{cell.name}.log").read_text() for cell in cells)
    assert list(sets) == ["rte", "mnli"], "in the order of the command line"
    assert "4 cells (2 sets x 2 settings x 1 seeds), 4 of them finished" in megabert(*grid, "--dry-run").out
    assert "--start-from mnli: mnli is not among the tasks" in megabert(*grid[:1], "rte", *grid[3:], code=2).err


def test_grid_without_a_rate_takes_the_models_and_is_continued(sets_dir, model_dir, tmp_path, monkeypatch, megabert):
    monkeypatch.setattr(grid_module, "run_children", forked)
    words = ["finetune", "rte", "--model", str(model_dir), "--data", str(sets_dir / "RTE"), *FLAGS[2:-1], "0.1"]
    words += ["--output-dir", str(tmp_path / "out"), "--processes", "1"]
    last = megabert(*words).out.splitlines()[-1]
    (setting,) = sets_of(tmp_path / "out")["rte"]["settings"]
    rate = RATES[128][False]
    assert setting["learning_rate"] == setting["summary"]["learning_rate"] == rate
    assert (tmp_path / "out" / "rte" / f"rate_{rate:g}-epochs_0.1-seed_5" / "seed_5").is_dir()
    assert ("constant answer" in last) is (setting["summary"]["stuck_seeds"] == [5])
    printed = megabert(*words, "--dry-run").out
    assert f"1 of them finished\nlearning rate {rate:g} (auto): pre-trained weights of width 32" in printed


def failing(commands, *, logs, slots):
    for number, log in enumerate(logs):
        with log.open("a") as file:
            file.write("step 3 skipped\nmegabert: DataError: 10 steps in a row\n  were not finite.\n")
        yield number, 3


def test_failed_cell_is_told_and_the_others_stay(copied, sets_dir, model_dir, monkeypatch, megabert):
    shutil.rmtree(copied / "rte" / "rate_0.003-epochs_2-seed_6")
    monkeypatch.setattr(grid_module, "run_children", failing)
    printed = megabert(*words_of(sets_dir, model_dir, copied), code=3)
    assert "rte, rate 0.003, epochs 2, seed 6: exit 3: megabert: DataError: 10 steps in a row" in printed.err
    rte = sets_of(copied)["rte"]
    assert rte["settings"][0]["failed"] == [6]
    assert rte["choice"] == 1, "a setting with a failed seed has only its lucky ones"
    assert re.search(r"rte +0.003 +2 +\S+ +1 +6", printed.out)


def test_set_whose_cells_all_fail_has_no_choice(sets_dir, model_dir, tmp_path, monkeypatch, megabert):
    monkeypatch.setattr(grid_module, "run_children", failing)
    assert "every cell failed" in megabert(*words_of(sets_dir, model_dir, tmp_path / "grid"), code=3).out
    assert sets_of(tmp_path / "grid")["own"]["choice"] is None
    assert "every cell of this grid failed" in megabert("report", tmp_path / "grid", code=4).err


@pytest.mark.soak
def test_sets_that_mnli_starts_count_as_failed_and_others_stay(sets_dir, model_dir, tmp_path, monkeypatch, megabert):
    def run(commands, *, logs, slots):
        for number, (command, log) in enumerate(zip(commands, logs, strict=True)):
            fails = command[4] == "mnli"
            outcomes = (failing if fails else forked)([command], logs=[log], slots=slots)
            yield from ((number, 4 if fails else code) for _, code in outcomes)

    monkeypatch.setattr(grid_module, "run_children", run)
    words = ["finetune", "rte", "mnli", "classification=own", "--model", str(model_dir), "--start-from", "mnli"]
    sets = ["--data", str(with_mnli(sets_dir, tmp_path / "sets")), "--output-dir", str(tmp_path / "out")]
    said = megabert(*words, *sets, *FLAGS, "--epochs", "0.2", code=4).err
    assert "mnli: every cell failed, so rte cannot start from its model" in said
    rate = f"{RATES[128][False]:g}"
    assert f"mnli, rate {rate}, epochs 0.2, seed 5: exit 4: megabert: DataError: 10 steps in a row" in said
    results = sets_of(tmp_path / "out")
    assert {name: one["settings"][0]["failed"] for name, one in results.items()} == {"rte": [5], "mnli": [5], "own": []}
    assert results["own"]["test"] is not None


def test_grid_grows_and_refuses_other_settings_or_data(copied, sets_dir, model_dir, tmp_path, monkeypatch, megabert):
    ran = []
    monkeypatch.setattr(grid_module, "run_children", lambda commands, **_: iter(ran.extend(commands) or ()))
    words = words_of(sets_dir, model_dir, copied)
    megabert(*words[:-1], "2e-4", "--seeds", "1")
    assert ["rate_0.0002-epochs_2-seed_5" in " ".join(command) for command in ran] == [True, True]
    for stop in ([], ["--dry-run"]):
        assert "weight_decay: 0.01 -> 0.5" in megabert(*words, "--weight-decay", "0.5", *stop, code=4).err
    changed = shutil.copytree(sets_dir, tmp_path / "sets")
    write_rte(changed / "RTE" / "dev.tsv", 43, 2)
    assert "evaluation file dev.tsv" in megabert(*words_of(changed, model_dir, copied), code=4).err


def test_dry_run_refuses_the_folder_that_the_grid_refuses(sets_dir, model_dir, tmp_path, megabert):
    (tmp_path / "thesis.tex").write_text("x")
    shown = megabert(*words_of(sets_dir, model_dir, tmp_path), "--dry-run", code=4).err
    assert "holds thesis.tex, so it is left alone" in shown


def test_message_of_a_failed_cell_is_of_this_run(tmp_path):
    log = tmp_path / "cell.log"
    log.write_text("megabert: DataError: of the run before\n")
    begin = log.stat().st_size
    assert grid_module._last_message(log, begin) == ""
    with log.open("a") as file:
        file.write("step 1\nmegabert: DataError: 10 steps\n  in a row\n")
    assert grid_module._last_message(log, begin) == "megabert: DataError: 10 steps   in a row"
