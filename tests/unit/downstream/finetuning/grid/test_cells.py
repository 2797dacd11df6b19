"""Which cells a grid has, from the names on its command line."""

import pytest

from megabert.downstream.finetuning.grid.cells import Grid, Setting, check_tasks, find_sets
from megabert.foundation.errors import ConfigError, DataError
from megabert.settings.config.finetune import FinetuneConfig


def config(data="sets", **fields) -> FinetuneConfig:
    return FinetuneConfig(model="m", data=str(data), **fields)


def test_the_only_task_takes_the_data_itself_and_several_take_folders():
    assert [str(one.data) for one in find_sets(["rte"], config())] == ["sets"]
    sets = find_sets(["rte", "boolq", "classification=own/reviews.csv"], config())
    assert [(one.name, one.task.name, str(one.data)) for one in sets] == [
        ("rte", "rte", "sets/RTE"),
        ("boolq", "boolq", "sets/boolq"),
        ("reviews", "classification", "sets/own/reviews.csv"),
    ]


def test_a_collection_is_the_tasks_that_the_folder_holds(tmp_path):
    for folder in ("RTE", "CoLA"):
        (tmp_path / folder).mkdir()
    assert [one.name for one in find_sets(["glue"], config(tmp_path))] == ["cola", "rte"]


def test_folder_without_tasks_is_named(tmp_path):
    with pytest.raises(DataError, match="no task of GLUE there; looked for the folders CoLA, SST-2"):
        find_sets(["glue"], config(tmp_path))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["rte", "rte"], "rte: two sets have this name"),
        (["classification=a/x.tsv", "regression=b/x.csv"], "x: two sets have this name"),
        (["classification="], "names no folder or file"),
        (["classification=/"], "names no folder or file"),
    ],
)
def test_names_that_do_not_tell_sets_apart_are_refused(names, says):
    with pytest.raises(ConfigError, match=says):
        find_sets(names, config())


@pytest.mark.parametrize("name", ["rtee", "rtee=x", "glue=x", ""])
def test_unknown_tasks_are_refused(name):
    with pytest.raises(ConfigError, match="no such task"):
        check_tasks([name])


def test_cells_are_settings_times_seeds_and_differ_in_nothing_else():
    shared = config(seed=5, seeds=2, weight_decay=0.1)
    settings = (Setting(1e-5, 3.0), Setting(3e-5, 0.5))
    (labelled,) = find_sets(["rte"], shared)
    cells = Grid(config=shared, sets=(labelled,), settings=settings).cells_of(labelled)
    assert [cell.name for cell in cells] == [
        "rate_1e-05-epochs_3-seed_5",
        "rate_1e-05-epochs_3-seed_6",
        "rate_3e-05-epochs_0.5-seed_5",
        "rate_3e-05-epochs_0.5-seed_6",
    ]
    own = Grid(config=shared, sets=(labelled,), settings=settings).config_of(cells[3], "m")
    assert own == config(seed=6, seeds=1, weight_decay=0.1, learning_rate=3e-5, epochs=0.5)
    assert str(cells[3]) == "rte, rate 3e-05, epochs 0.5, seed 6"


def test_tasks_with_an_intermediate_one_come_after_it_if_that_is_asked():
    sets = find_sets(["rte", "mnli", "cola", "stsb"], config())
    grid = Grid(config=config(), sets=sets, settings=(Setting(1e-5, 3.0),))
    assert [[one.name for one in wave] for wave in grid.waves()] == [["rte", "mnli", "cola", "stsb"]]
    grid = Grid(config=config(), sets=sets, settings=grid.settings, start_from="mnli")
    assert [[one.name for one in wave] for wave in grid.waves()] == [["mnli", "cola"], ["rte", "stsb"]]
