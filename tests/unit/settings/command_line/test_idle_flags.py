"""No flag is without effect, without a value, or with a lax one: in every command of both programs."""

import argparse
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from data_prep.cli import PROGRAM as DATA
from data_prep.config.build import BUILD_NEEDS, BuildConfig
from megabert.cli import PROGRAM as TRAIN
from megabert.downstream.finetuning.tasks import TASKS
from megabert.foundation.errors import ConfigError
from megabert.settings.command_line.flags import meant_flag
from megabert.settings.command_line.parser import Parser
from megabert.settings.config.fields import field_table
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import load_run_config, merge_layers, to_dict
from megabert.settings.config.names import aliases
from megabert.settings.config.needs import FINETUNE_NEEDS, RUN_NEEDS, WITHOUT_ANSWERS, refuse_idle
from megabert.settings.config.run import RunConfig

COMMANDS = [(program, name) for program in (TRAIN, DATA) for name in program.commands]


def parser_of(program, name: str) -> Parser:
    parser = Parser(f"{program.name} {name}")
    import_module(f"{program.package}.{name.replace('-', '_')}").add_arguments(parser)
    return parser


def options_of(parser: Parser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings and action.nargs != 0]


def names_of(parser: Parser) -> set[str]:
    own = {name for action in parser._actions for name in action.option_strings}
    return own | {f"--{path.replace('_', '-')}" for path in parser.fields}


@pytest.mark.parametrize(("program", "name"), COMMANDS, ids=lambda value: getattr(value, "name", value))
def test_no_option_takes_an_empty_word_or_a_lax_number(program, name):
    parser = parser_of(program, name)
    for action in options_of(parser):
        words = ["", *(["1_0", "0x1", " 1", "nan", "1e999", "9" * 400] if is_number(action) else [])]
        for word in words:
            with pytest.raises(ConfigError, match=action.option_strings[0]):
                parser_of(program, name).parse([action.option_strings[0], word])


@pytest.mark.parametrize(("program", "name"), COMMANDS, ids=lambda value: getattr(value, "name", value))
def test_option_of_several_values_that_is_repeated_keeps_them_all(program, name):
    parser = parser_of(program, name)
    # --epochs stands for a field, of which the last value counts, as for all fields.
    for action in (one for one in options_of(parser) if one.nargs == "+" and one.dest != "epochs"):
        options = argparse.Namespace(**{action.dest: action.default})
        for value in "ab":
            action(parser, options, [value], action.option_strings[0])
        assert getattr(options, action.dest) == ["a", "b"], action.option_strings[0]


def is_number(action: argparse.Action) -> bool:
    return action.type in (int, float) or getattr(action.type, "__name__", "") in ("read_bounded", "_workers")


@pytest.mark.parametrize(("program", "name"), COMMANDS, ids=lambda value: getattr(value, "name", value))
def test_rules_of_flags_name_flags_and_hold(program, name):
    parser, names = parser_of(program, name), names_of(parser_of(program, name))
    for flag, needs, excludes in parser.rules:
        assert {flag, *needs, *excludes} <= names
        with pytest.raises(ConfigError, match=flag):
            parser._check_rules({flag, *excludes[:1]})


def test_of_several_excluded_flags_the_first_is_named():
    parser = Parser("x")
    parser.add_rule("--a", excludes=["--b", "--c", "--d", "--e"])
    with pytest.raises(ConfigError, match="--a and --b exclude"):
        parser._check_rules(["--e", "--d", "--c", "--b", "--a"])


@pytest.mark.parametrize(("program", "name"), COMMANDS, ids=lambda value: getattr(value, "name", value))
def test_fields_that_change_nothing_of_a_command_are_no_flags_of_it(program, name):
    parser = parser_of(program, name)
    assert not parser.idle & set(parser.fields)
    for path in parser.idle:
        with pytest.raises(ConfigError, match="has no effect on"):
            parser._check_rules({f"--{path.replace('_', '-').replace('.N.', '.0.')}"})


TABLES = [
    (
        RunConfig,
        RUN_NEEDS,
        to_dict(load_run_config("debug", flags={"optimizer": {"name": "adamw"}, "init_from": "base"})),
    ),
    (FinetuneConfig, FINETUNE_NEEDS, {"task": "tagging", "kind of task": "tagging", "eval_data": "dev.tsv"}),
    (BuildConfig, BUILD_NEEDS, to_dict(merge_layers(BuildConfig, {"sources": [{"input": "a"}], "tokenizer": "b"}))),
]


@pytest.mark.parametrize(("cls", "needs", "values"), TABLES, ids=lambda value: getattr(value, "__name__", None))
def test_fields_that_need_others_are_refused_without_them(cls, needs, values):
    paths = {row.path for row in field_table(cls)}
    for path, need in needs.items():
        assert path in paths
        assert need.path in {*paths, "task", "kind of task"}
        with pytest.raises(ConfigError, match=f"--{path.replace('_', '-')} has no effect: it needs {need.path}"):
            refuse_idle({path: "given"}, values, needs)


def test_the_threshold_of_no_answer_belongs_to_tasks_that_may_have_none():
    assert set(WITHOUT_ANSWERS) == {task.name for task in TASKS.values() if task.may_be_unanswerable}


def test_a_flag_of_a_source_changes_the_input_of_its_number(tmp_path, capsys):
    words = ["build", "--input", "a.txt", "b.txt", "--output", str(tmp_path / "out"), "--print-config"]
    assert DATA.run([*words, "--sources.1.weight", "2"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert [(source["input"], source["weight"]) for source in config["sources"]] == [("a.txt", 1.0), ("b.txt", 2.0)]
    assert DATA.run([*words, "--sources.2.weight", "2"]) == 2
    assert "sources: there is no element '2'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "flag", "meant"),
    [
        ("pretrain", "lr", "--phases.0.learning-rate"),
        ("pretrain", "batch-size", "--phases.0.global-batch-size"),
        ("pretrain", "max_steps", "--phases.0.steps"),
        ("pretrain", "epochs", "--phases.0.tokens"),
        ("pretrain", "learning-rate", "--phases.0.learning-rate"),
        ("pretrain", "warmup-steps", "--phases.0.warmup-ratio"),
        ("pretrain", "weight-decay", "--optimizer.weight-decay"),
        ("pretrain", "fp16", "--precision"),
        ("pretrain", "output-dir", "--run-dir"),
        ("finetune", "lr", "--learning-rate"),
        ("finetune", "num_train_epochs", "--epochs"),
        ("embed", "out", "--output"),
    ],
)
def test_names_of_other_programs_lead_to_ours(command, flag, meant, megabert):
    assert f"--{flag}: no such flag; did you mean {meant}?" in megabert(command, f"--{flag}", "1", code=2).err


def test_every_alias_leads_to_a_flag():
    known = sorted({name for program, command in COMMANDS for name in names_of(parser_of(program, command))})
    for alias, names in aliases().items():
        for name in names:
            assert meant_flag(name, known)[1], (alias, name)


def test_every_alias_of_a_field_leads_to_it_in_files_and_paths():
    known = [row.path for row in field_table(RunConfig)]
    for alias, names in aliases().items():
        paths = [path for name in names for path in known if path == name or path.endswith(f".{name}")]
        if not paths or alias in {part for path in known for part in path.split(".")}:
            continue
        section = paths[0].rpartition(".")[0].replace("N", "0").split(".")[0]
        inner = {alias: 1} if section != "phases" else [{alias: 1}]
        for value in ({alias: 1}, {section: inner} if section else {alias: 1}):
            with pytest.raises(
                ConfigError, match=rf"{alias}: unknown field; did you mean [\w.]*{paths[0].rpartition('.')[2]}\?"
            ):
                load_run_config("debug", [], value)


def test_the_shell_quotes_of_a_launcher_are_closed(megabert, tmp_path: Path):
    words = ["finetune", "glue", "--model", "m", "--data", str(tmp_path), "--launcher", "srun 'x"]
    assert "is no list of words (No closing quotation)" in megabert(*words, code=2).err
