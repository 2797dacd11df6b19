"""Names that installed packages register: which are taken, and each wrong one with its sentence."""

import sys

import pytest
import yaml
from support.packages import write_package

from data_prep.clean.cleaner import Cleaner
from data_prep.config.cleaning import CleanConfig
from data_prep.execution.records import Problems
from megabert.downstream.finetuning.task_kinds import kind_of_task
from megabert.downstream.finetuning.tasks import find_task
from megabert.downstream.run_settings import resolve_run
from megabert.foundation.errors import ConfigError
from megabert.settings.config import extensions
from megabert.settings.config.loading import load_run_config, merge_layers, to_dict
from megabert.settings.config.run import OptimizerConfig

CODE = """
from pydantic.dataclasses import dataclass
from data_prep.clean.quality import LineRule
from megabert.downstream.finetuning.tasks import Task
from megabert.optim import AdamW
from megabert.optim.base import OptimizerOptions
from megabert.settings.config.fields import STRICT

@dataclass(frozen=True, config=STRICT)
class Mine(OptimizerOptions):
    rate: float = 0.5
    sizes: tuple[int, ...] = (1, 2)
    def build(self, groups, config):
        return AdamW(groups, config)

class Bare(OptimizerOptions):
    def build(self, groups, config):
        return None

@dataclass(frozen=True, config=STRICT)
class Unfinished(OptimizerOptions):
    rate: float = 0.5

@dataclass(frozen=True, config=STRICT)
class NoOptimizer(OptimizerOptions):
    def build(self, groups, config):
        return "no optimizer"

@dataclass(frozen=True, config=STRICT)
class Short(LineRule):
    most: int = 10
    def keep(self, lines):
        return [line[:-1] + " " for line in lines if len(line) <= self.most]

task = Task("another name", "of a package", label="book", metrics=("f1",))
number = 3
"""
OPTIMIZERS, RULES, TASKS = "megabert.optimizers", "megabert.cleaning_rules", "megabert.tasks"


@pytest.fixture
def install(tmp_path, monkeypatch):
    def install_package(name, entry_points, code=CODE):
        monkeypatch.syspath_prepend(write_package(tmp_path / name, name, entry_points, code))
        monkeypatch.delitem(sys.modules, name, raising=False)
        extensions.registered.cache_clear()

    yield install_package
    monkeypatch.undo()
    extensions.registered.cache_clear()


@pytest.fixture
def mine(install):
    kinds = {OPTIMIZERS: ("Mine", "Bare", "Unfinished", "NoOptimizer", "number", "gone")}
    entries = {group: {name.lower(): f"pkg:{name}" for name in names} for group, names in kinds.items()}
    install("pkg", {**entries, RULES: {"short": "pkg:Short", "mine": "pkg:Mine"}, TASKS: {"books": "pkg:task"}})


def refused(**optimizer):
    with pytest.raises(ConfigError) as error:
        merge_layers(OptimizerConfig, optimizer)
    return str(error.value)


def test_a_packages_optimizer_is_recorded_with_all_its_options_and_its_version(mine):
    config = merge_layers(OptimizerConfig, {"name": "mine", "options": {"rate": 0.1}})
    assert (config.options, config.package) == ({"rate": 0.1, "sizes": [1, 2]}, "pkg 0.1")
    assert merge_layers(OptimizerConfig, to_dict(config)) == config


def test_options_are_checked_as_our_own_fields_are(mine):
    text = refused(name="mine", options={"rate": "0.1", "size": [1], "sizes": [1, 2.5]})
    assert text.startswith("optimizer mine of pkg 0.1: The configuration has 3 problem(s):")
    assert "size: unknown field; did you mean sizes?" in text
    assert "Input should be a valid number" in text
    assert "belong to packages' optimizers, not to adamw" in refused(name="adamw", options={"rate": 1.0})


def test_a_later_layer_with_another_optimizer_leaves_options_behind(mine):
    layers = {"name": "mine", "options": {"rate": 0.1}}, {"name": "lamb"}
    assert merge_layers(OptimizerConfig, *layers[:1]).options["rate"] == 0.1
    config = load_run_config("debug", flags={"optimizer": layers[0]})
    assert config.optimizer.package == "pkg 0.1"
    recorded = to_dict(config)
    del recorded["name"]
    assert load_run_config("debug", flags={**recorded, "optimizer": layers[1]}).optimizer.package is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("min", "min: no such optimizer, here or in an installed package; did you mean mine?"),
        ("bare", "optimizer bare of pkg 0.1 is <class 'pkg.Bare'>: no pydantic dataclass with all methods of"),
        ("unfinished", "Unfinished'>: no pydantic dataclass with all methods of OptimizerOptions."),
        ("number", "optimizer number of pkg 0.1 is 3: no pydantic dataclass"),
        ("gone", "optimizer gone of pkg 0.1 cannot be imported: AttributeError: module 'pkg' has no attribute 'gone'"),
    ],
)
def test_a_wrong_name_or_type_is_a_sentence(mine, name, words):
    assert words in refused(name=name)


def test_an_optimizer_that_builds_none_is_refused(mine):
    import torch

    from megabert.optim import build_optimizer

    named = [("weight", torch.nn.Parameter(torch.ones(2)))]
    assert type(build_optimizer(named, OptimizerConfig(name="mine"))).__name__ == "AdamW"
    with pytest.raises(ConfigError, match=r"optimizer nooptimizer of pkg 0\.1: build gave no BaseOptimizer"):
        build_optimizer(named, OptimizerConfig(name="nooptimizer"))


def test_an_error_of_the_users_module_is_named(install):
    install("broken", {OPTIMIZERS: {"mine": "broken:Mine"}}, "import no_such_library")
    text = refused(name="mine")
    assert "optimizer mine of broken 0.1 cannot be imported: ModuleNotFoundError: No module named 'no_such_li" in text


def test_a_name_that_two_packages_have_is_refused(mine, install):
    install("other", {OPTIMIZERS: {"mine": "other:Mine"}})
    assert "a name is registered once. Uninstall one" in (text := refused(name="mine"))
    assert "other 0.1" in text
    assert "pkg 0.1" in text


def test_a_name_of_ours_is_refused_where_it_is_used(install):
    from megabert.optim import build_optimizer

    install("pkg", {OPTIMIZERS: {"adamw": "pkg:Mine"}, RULES: {"length": "pkg:Short"}, TASKS: {"mnli": "pkg:task"}})
    with pytest.raises(ConfigError, match=r"optimizer adamw of megabert and pkg 0\.1: a name is registered once"):
        build_optimizer([], OptimizerConfig(name="adamw"))
    with pytest.raises(ConfigError, match=r"cleaning rule length of megabert and pkg 0\.1"):
        CleanConfig(rules=("length",))
    with pytest.raises(ConfigError, match=r"task mnli of megabert and pkg 0\.1"):
        find_task("mnli")


def test_another_version_than_the_recorded_one_is_refused(mine):
    assert extensions.load_extension("optimizer", "mine", (), {}, "pkg 0.1")
    with pytest.raises(ConfigError, match=r"was begun with pkg 0\.2 \(here: 0\.1\)\. Install that: pip install pkg==0"):
        extensions.load_extension("optimizer", "mine", (), {}, "pkg 0.2")
    with pytest.raises(ConfigError, match=r"with gone 3 \(here: not installed\)\. Install that: pip install gone==3$"):
        extensions.load_extension("optimizer", "mine", (), {}, "gone 3")


def test_a_recorded_configuration_is_read_without_its_package():
    recorded = {"name": "mine", "options": {"rate": 0.1}, "package": "gone 3"}
    assert merge_layers(OptimizerConfig, recorded).options == {"rate": 0.1}


def test_a_packages_rule_cleans_and_counts(mine):
    config = merge_layers(CleanConfig, {"rules": ["short"], "options": {"short": {"most": 5}}})
    cleaner = Cleaner(config, Problems())
    assert cleaner.clean("one\nlonger than that\nfour.\n", "here") == ["on", "four"]
    assert cleaner.counts["short"]["paragraphs"] == 1
    assert cleaner.clean("longer than that", "here") == []
    with pytest.raises(ConfigError, match="most: Input should be a valid integer"):
        merge_layers(CleanConfig, {"rules": ["short"], "options": {"short": {"most": "5"}}})
    with pytest.raises(ConfigError, match=r"cleaning rule mine of pkg 0\.1 is .*with all methods of LineRule"):
        CleanConfig(rules=("mine",))


def test_a_packages_task_has_the_name_of_its_entry_point(mine):
    task = find_task("books")
    assert (task.name, task.label, task.metrics, task.package) == ("books", "book", ("f1",), "pkg 0.1")
    with pytest.raises(ConfigError, match="no such task, here or in an installed package; did you mean books"):
        find_task("book")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('metrics=("f1",)', 'metrics="f1"', "cannot be imported: ValidationError.*metrics"),
        ('label="book"', 'own_kind=dict, label="book"', r"own_kind=dict is no TaskKind\. Correct it\."),
    ],
)
def test_a_task_with_a_wrong_field_is_named(install, old, new, says):
    install("pkg", {TASKS: {"books": "pkg:task"}}, CODE.replace(old, new))
    with pytest.raises(ConfigError, match=rf"(?s)task books of pkg 0\.1:? {says}"):
        kind_of_task(find_task("books"))


def test_a_fork_of_a_run_whose_package_is_gone_is_refused_before_anything_is_read(tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    recorded = {"optimizer": {"name": "mine", "package": "gone 3"}}
    (origin / "config.yaml").write_text(yaml.safe_dump(recorded))
    with pytest.raises(ConfigError, match=r"with gone 3 \(here: not installed\)"):
        resolve_run(tmp_path / "new", recipe=None, fields={"fork": f"{origin}@5"})
