"""Grids before their first cell: sets, settings, slots, and the time that they will take."""

import re
import shutil

import pytest
from unit.downstream.finetuning.grid.test_grid import words_of

from megabert.downstream.finetuning.grid import grid as grid_module
from megabert.downstream.finetuning.grid.cells import Grid, Setting, find_sets
from megabert.downstream.finetuning.grid.survey import find_test_file, survey
from megabert.downstream.finetuning.trainer import TaskTrainer
from megabert.foundation.errors import ConfigError

pytestmark = pytest.mark.usefixtures("without_gpu")


def test_dry_run_tells_cells_rates_and_time_and_writes_nothing(sets_dir, model_dir, tmp_path, megabert):
    printed = megabert(*words_of(sets_dir, model_dir, tmp_path / "new"), "--dry-run").out
    assert "8 cells (2 sets x 2 settings x 2 seeds), 0 of them finished" in printed
    assert re.search(r"rte: [\d,]+ examples/s, 120 to train on, \d+ s to start", printed)
    assert re.search(r"the other 8 will take about [\d.]+ \w+, one after the other, and \d.\d GiB", printed)
    assert not (tmp_path / "new").exists()


def test_dry_run_for_gpus_elsewhere_checks_and_measures_nothing(sets_dir, model_dir, tmp_path, monkeypatch, megabert):
    monkeypatch.setattr(TaskTrainer, "measure_step", None)
    words = [*words_of(sets_dir, model_dir, tmp_path / "new"), "--device", "cuda", "--dry-run"]
    printed = megabert(*words).out
    assert re.search(r"8 cells .*\nthe other 8 need \d.\d GiB for their models\nthis machine has no GPU: ", printed)
    assert not (tmp_path / "new").exists()
    assert "zero9" in megabert(*words, "--engine", "zero9", code=2).err


def test_dry_run_counts_one_cell_at_a_time_with_a_launcher(sets_dir, model_dir, tmp_path, monkeypatch, megabert):
    asked = []
    monkeypatch.setattr(grid_module, "_slots", lambda *given, **others: asked.append((given, others)))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    words = [*words_of(sets_dir, model_dir, tmp_path / "new"), "--device", "cuda", "--dry-run"]
    megabert(*words, "--launcher", "torchrun --nproc_per_node 8 -m")
    assert asked == [((1, 8), {"has_launcher": True})]


def test_test_set_that_cannot_be_scored_is_told_before_the_first_cell(sets_dir, model_dir, tmp_path, caplog, megabert):
    changed = shutil.copytree(sets_dir, tmp_path / "sets")
    (changed / "own" / "test.tsv").write_text("text\na ship\n")  # as published ones are, which have no labels
    megabert(*words_of(changed, model_dir, tmp_path / "new"), "--dry-run")
    assert re.search("own: this test set will not be scored: .*test.tsv.*label", caplog.text)


@pytest.mark.parametrize(
    ("task", "evaluation", "is_scored"),
    [("classification", "", True), ("classification", "test.tsv", False), ("rte", "", False)],
)
def test_test_set_is_one_that_picks_nothing(sets_dir, make_kind, task, evaluation, is_scored):
    config = grid_module.FinetuneConfig(
        model="m", data=str(sets_dir / "own"), eval_data=str(sets_dir / "own" / evaluation) if evaluation else None
    )
    (labelled,) = find_sets([task], config)
    test = find_test_file(labelled, config, make_kind(task, ("blue", "red")))
    assert test == (sets_dir / "own" / "test.tsv" if is_scored else None)


def test_several_ranks_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = grid_module.FinetuneConfig(model="m", data="d")
    grid = Grid(config=config, sets=find_sets(["rte"], config), settings=(Setting(1e-5, 3.0),))
    with pytest.raises(ConfigError, match="--launcher"):
        grid_module.GridRun(grid, tmp_path / "out", device="cpu", processes=1, launcher="", import_s=0.0)


def test_every_set_pays_for_what_the_first_one_imported(sets_dir, model_dir, tmp_path, monkeypatch, megabert):
    costs = iter([(1.0, 8.0), (2.0, 0.5)])

    def measured(*arguments, **words):
        read_s, build_s = next(costs)
        return survey(*arguments, **words)._replace(read_s=read_s, build_s=build_s)

    monkeypatch.setattr(grid_module, "survey", measured)
    own = grid_module.GridRun.__init__
    monkeypatch.setattr(grid_module.GridRun, "__init__", lambda *a, **words: own(*a, **{**words, "import_s": 4.0}))
    printed = megabert(*words_of(sets_dir, model_dir, tmp_path / "new"), "--dry-run").out
    assert re.findall(r"(\d+) s to start", printed) == ["13", "14"]


def test_slots_share_cores_and_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in grid_module._slots(3, 2, has_launcher=False)] == ["4", "6", "4"]
    two = grid_module._slots(2, 0, has_launcher=False)
    assert {slot["RANK"] for slot in two} == {"0"}, "a rank dies with the process that started it"
    assert len(two) == 2
    assert int(two[0]["OMP_NUM_THREADS"]) >= 1
    assert "OMP_NUM_THREADS" not in grid_module._slots(1, 0, has_launcher=False)[0]
    assert "RANK" not in grid_module._slots(1, 8, has_launcher=True)[0]
