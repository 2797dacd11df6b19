"""What ``--help`` and ``--help-all`` say."""

import os
import re
import subprocess
import sys
from importlib import import_module

import pytest
from unit.settings.command_line.test_idle_flags import COMMANDS

from data_prep.cli import PROGRAM as DATA
from megabert.cli import PROGRAM as MEGABERT
from megabert.observability.flops import GPUS
from megabert.settings.command_line.help import render_help
from megabert.settings.command_line.parser import Parser
from megabert.settings.config.fields import field_table
from megabert.settings.config.loading import shipped_names
from megabert.settings.config.run import RunConfig


def flags(text: str) -> dict[str, str]:
    """Return what follows each flag, in one line."""
    parts = re.split(r"^  (?=-)", text.partition("\nExample")[0], flags=re.MULTILINE)[1:]
    pairs = [part.split("\n\n")[0].partition(" ") for part in parts]
    return {name: " ".join(about.split()) for name, _, about in pairs}


@pytest.fixture
def shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def show(program, *words: str) -> str:
        with pytest.raises(SystemExit) as stop:
            program.run(words)
        assert stop.value.code == 0
        return capsys.readouterr().out

    return show


@pytest.mark.parametrize(("program", "name"), COMMANDS, ids=lambda value: getattr(value, "name", value))
def test_every_command_has_help_with_an_example(program, name, shown):
    text = shown(program, name, "--help")
    assert f"{program.name} {name}" in text.split("\nExample")[-1]
    assert len(flags(text)) <= 14, "the flags that most runs set"
    # Texts begin with a capital letter, which a list of values must not be given.
    assert not [about for about in flags(text).values() if re.search(r"(^|[A-Z}] )[A-Z][a-z0-9_-]+,", about)]
    if "--help-all" in text:
        everything = flags(shown(program, name, "--help-all"))
        assert flags(text).keys() <= everything.keys()
        assert len(everything) > 20


@pytest.mark.parametrize(("program", "name"), COMMANDS, ids=lambda value: getattr(value, "name", value))
def test_docstring_describes_the_arguments_that_a_command_has(program, name):
    parser = Parser(name, program.help_of(name))
    import_module(f"{program.package}.{name.replace('-', '_')}").add_arguments(parser)
    names = {name for action in parser._actions for name in (*action.option_strings, action.metavar or action.dest)}
    assert parser.described.keys() <= names
    assert [action.dest for action in parser._actions if not action.help] == []


@pytest.mark.parametrize("program", [MEGABERT, DATA], ids=lambda program: program.name)
def test_table_of_commands_fits_a_terminal(program):
    lines = program.usage().splitlines()
    table = program.usage().split("\n\n")[2].splitlines()
    rows = [line for line in table if set(line.split()[:2]).intersection(program.commands)]
    assert len(rows) == len(program.commands)
    assert [line for line in lines if len(line) > 79] == []
    assert len(lines) <= 24


@pytest.mark.parametrize(("program", "name"), COMMANDS, ids=lambda value: getattr(value, "name", value))
def test_examples_fit_a_terminal_and_can_be_pasted(program, name, monkeypatch, capsys):
    pages = []
    for columns in ("80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit):
            program.run((name, "--help"))
        pages.append(capsys.readouterr().out.split("\nExample")[-1])
    narrow, wide = pages
    assert [line for line in narrow.splitlines() if len(line) > 80] == []
    assert narrow.replace(" \\\n     ", "") == wide


def test_names_to_choose_from_stand_as_they_are_typed(shown):
    about = flags(shown(MEGABERT, "estimate", "--help"))
    for flag, names in (("--recipe", shipped_names("recipe")), ("--gpu", GPUS)):
        assert f" {', '.join(names)}" in about[flag]


def test_short_help_takes_the_first_sentence(monkeypatch):
    parser = Parser("x")
    parser.add_fields(RunConfig, first=("seed", "fork"))
    rows = {path: row._replace(about="One thing. Another thing.") for path, row in parser.fields.items()}
    parser.fields = rows
    assert flags(render_help(parser, has_all=False))["--seed"] == "N One thing (default: 42)"
    assert flags(render_help(parser, has_all=True))["--seed"] == "N One thing. Another thing (default: 42)"


def test_all_fields_are_shown_with_defaults_and_words(shown):
    everything = flags(shown(MEGABERT, "pretrain", "--help-all"))
    fields = {f"--{row.path.replace('_', '-')}" for row in field_table(RunConfig) if not row.is_boolean}
    assert fields <= everything.keys()
    assert everything["--optimizer.name"].startswith("TEXT|lamb|adamw|stable_adamw|muon ")
    assert everything["--ops.layer-norm"].startswith("auto|triton|apex|torch ")
    assert everything["--micro-batch-tokens"].startswith("N|auto ")
    assert everything["--optimizer.betas"].endswith("(default: 0.9 0.999)")
    assert everything["--activation-checkpointing,"].startswith("--no-activation-checkpointing ")
    assert everything["--activation-checkpointing,"].endswith("(default: false)")
    assert everything["--init-from"].endswith("(default: none)")
    assert everything["--phases.N.learning-rate"].endswith("(default: the recipe's)")


@pytest.mark.parametrize("program", ["megabert pretrain", "data_prep build"])
def test_help_needs_no_docstrings_and_no_wide_terminal(program):
    module, verb = program.split()
    environment = {**os.environ, "PYTHONOPTIMIZE": "2", "COLUMNS": "1"}
    command = [sys.executable, "-m", module, verb, "--help-all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "--seed" in done.stdout
