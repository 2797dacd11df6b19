from pathlib import Path

import pytest

from megabert.downstream.export import model_folder
from megabert.downstream.export.model_folder import SHIPPED_MODELS, find_model, kind_of_folder
from megabert.foundation.errors import ConfigError

ROOT = Path(__file__).parents[4]


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder of shipped models with an English one, and an empty working folder."""
    folder = tmp_path / "repository" / "models"
    (folder / "english").mkdir(parents=True)
    (folder / "english" / "config.json").write_text("{}")
    monkeypatch.setattr(model_folder, "SHIPPED_MODELS", folder)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def test_shipped_models_lie_beside_the_package():
    assert SHIPPED_MODELS == ROOT / "models"


def test_a_name_means_the_shipped_model(shipped):
    assert find_model("english") == shipped / "english"
    assert kind_of_folder("english") == "hugging face"


def test_a_folder_of_that_name_wins_even_if_it_is_no_model(shipped):
    Path("english").mkdir()
    assert find_model("english") == Path("english")
    with pytest.raises(ConfigError, match="english: neither a run folder"):
        kind_of_folder("english")


@pytest.mark.parametrize("name", ["./english", "models/english", "English", "deutsch"])
def test_other_names_are_paths(name, shipped):
    assert find_model(name) == Path(name)


def test_a_model_that_is_not_installed_is_refused_with_its_place(shipped):
    with pytest.raises(ConfigError, match=r"korean: .* a wheel leaves out. Copy models/korean from there"):
        kind_of_folder("korean")


@pytest.mark.parametrize(("name", "meant"), [("englsh", "english"), ("models/korean", "korean")])
def test_a_mistyped_name_of_a_shipped_model_is_answered_with_the_name(name, meant, shipped):
    with pytest.raises(ConfigError, match=f"Did you mean the shipped model {meant}\\?$"):
        kind_of_folder(name)


def test_an_adapter_is_not_passed_over(shipped):
    (shipped / "english" / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"adapter_config.json: an adapter of peft, .* merge_and_unload\(\)"):
        kind_of_folder("english")
