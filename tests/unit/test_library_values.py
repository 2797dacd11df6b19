"""Every argument of every public function and method, given anything: a result, or an error of megabert's."""

import csv
import dataclasses
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from support.exported_models import write_english
from support.run_folders import train_row, write_run

from data_prep.config.build import BuildConfig
from megabert import library
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.run import RunConfig

VALUES = {
    "numbers": [True, 0, -1, 10**30, 2.0, float("nan"), float("inf"), 1j, np.int64(2), np.float32(1), torch.tensor(1)],
    "texts": ["", "a", "\0", "\ud800", " \n", "[MASK] " * 300, "a " * 3000, "x" * 5000, np.str_("a"), b"a", Path("a")],
    "lists": [[], (), [None], ["a", 1], ["\ud800"], [["a"]], [b"a"], ["a " * 3000]],
    "arrays": [np.array("a"), np.array([["a"]]), np.array([1.0, np.nan]), np.zeros(0), torch.zeros(2), bytearray(b"a")],
    "views": [range(3), slice(1), memoryview(b"")],
    "others": [None, ..., {}, {"a": 1}, {b"a": 1}, {"a"}, object(), print, int, Exception("x")],
}
SOUND = {"text": "the [MASK] ship", "texts": ["a"], "words": ["ship"], "query": "ship", "first": "a", "second": "a"}
SOUND |= {"name": "dev", "metric": "accuracy"}
METHODS = [
    (cls, name)
    for cls in (getattr(library, name) for name in library.__all__)
    if inspect.isclass(cls) and not issubclass(cls, Exception | tuple)
    for name, function in inspect.getmembers(cls, inspect.isfunction)
    if not name.startswith("_") and len(inspect.signature(function).parameters) > 1
]
CONFIGS = {"build": BuildConfig, "pretrain": RunConfig, "resume": RunConfig}
"""The configuration of a function's settings, if it is not a fine-tuning's."""
FUNCTIONS = [name for name in library.__all__ if inspect.isfunction(getattr(library, name))]


@pytest.fixture(scope="module")
def instances(tmp_path_factory):
    """An instance of each public class with methods, and the folder of its model."""
    folder = tmp_path_factory.mktemp("library")
    write_english(folder, family="bert")
    with open(folder / "train.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), ("the whale rose", "sea"), ("a garden", "land")])
    (folder / "dev.csv").write_bytes((folder / "train.csv").read_bytes())
    trained = library.fine_tune(
        "classification", model=folder / "model", data=folder, output_dir=folder / "tuned", device="cpu", epochs=1
    )
    return {
        library.Model: library.load_model(folder / "model", device="cpu"),
        library.Classifier: library.load_classifier(trained.best_model, device="cpu"),
        library.Summary: trained,
        library.Run: library.load_run(write_run(folder / "run", [train_row(1, 7.0)])),
        Path: folder,
    }


def calls_of(function, sound):
    """Yield calls in which one argument has a value of the table, and the others are sound; a new one needs a row."""
    parameters = inspect.signature(function).parameters.values()
    needed = {
        one.name: sound[one.name] for one in parameters if one.default is one.empty and one.kind != one.VAR_KEYWORD
    }
    fields = dataclasses.fields(CONFIGS.get(function.__name__, FinetuneConfig))
    settings = [field.name for field in fields]
    for one in parameters:
        is_shared = one.kind == one.VAR_KEYWORD and function is library.evaluate  # fine_tune's settings are given all
        for name in settings if one.kind == one.VAR_KEYWORD else [one.name]:
            for values in VALUES.values():
                yield from ({**needed, name: value} for value in values[: 1 if is_shared else None])


def assert_answered(function, sound):
    for arguments in calls_of(function, sound):
        try:
            function(**arguments)
        except library.MegabertError:
            pass
        except Exception as error:
            pytest.fail(f"{function.__name__}({arguments!a:.300}): {error!r}")


@pytest.mark.parametrize(("cls", "name"), METHODS, ids=lambda value: getattr(value, "__name__", value))
def test_a_method_answers_any_value(cls, name, instances):
    assert_answered(getattr(instances[cls], name), SOUND)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_answers_any_value(name, instances, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = instances[Path]
    paths = {"name": folder / "model", "model": folder / "model", "folder": folder / "tuned/seed_42/model"}
    paths |= {"run_dir": tmp_path / "run", "inputs": ["none.txt"]}
    assert_answered(
        getattr(library, name),
        {**paths, "task": "classification", "data": tmp_path / "none.csv", "output_dir": tmp_path / "new"},
    )
