"""Whatever a command calls with a path can be called from Python with a str."""

import ast
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

import data_prep.commands
import megabert.commands
from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.downstream.export.huggingface import read_huggingface, write_huggingface
from megabert.downstream.finetuning.saved_model import read_saved_model
from megabert.foundation.errors import MegabertError
from megabert.foundation.path_arguments import takes_paths

OF_COMMANDS = {
    "as_damage",
    "check_saved_file",
    "refuse_input",
    "show_stats",
    "open_mapped",
    "load_run_config",
    "merge_layers",
}
"""Functions that serve the command line, and those that take lists of files."""
CALLED = (read_huggingface, write_huggingface, find_checkpoint, read_masters, read_saved_model)


def called_by_commands() -> Iterator[Callable]:
    """Yield the functions of other rooms that commands import."""
    for package in (megabert.commands, data_prep.commands):
        for path in Path(package.__path__[0]).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module and ".commands" not in node.module:
                    room = import_module(node.module)
                    yield from filter(inspect.isfunction, (getattr(room, name.name, None) for name in node.names))


def takes_str(function: Callable) -> bool:
    paths = [one.annotation for one in inspect.signature(function).parameters.values() if "Path" in str(one.annotation)]
    if all("str" in str(annotation) for annotation in paths):
        return True
    decorated = takes_paths(lambda: None).__code__
    while getattr(function, "__code__", None) is not decorated and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None) is decorated


def test_every_function_that_a_command_calls_takes_a_str_for_a_path():
    functions = {function for function in called_by_commands() if function.__name__ not in OF_COMMANDS}
    assert len(functions) > 40
    assert [function.__qualname__ for function in (*functions, *CALLED) if not takes_str(function)] == []


@pytest.mark.parametrize("function", [read_huggingface, find_checkpoint, read_masters, read_saved_model])
def test_a_str_is_a_path(function, tmp_path):
    with pytest.raises(MegabertError, match="nowhere"):
        function(str(tmp_path / "nowhere"))
