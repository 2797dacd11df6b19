"""Arguments of the library and the commands: one table of values, checks by annotation, errors of the system."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from megabert.foundation.errors import ConfigError, DataError
from megabert.settings.command_line.arguments import CopyMask, Device, Pooling, checks_arguments
from megabert.settings.command_line.parser import Parser

FLAGS = (("pll", "device", Device), ("pairs", "mask", CopyMask), ("embed", "pooling", Pooling))


@checks_arguments
def read(texts: Sequence[str], *, top_k: int = 5, folder: str | Path = ".", second: str | None = None) -> list:
    return [texts, top_k, open(folder, "rb") if folder != "." else None, second]


def test_commands_offer_the_values_of_the_table():
    for command, dest, values in FLAGS:
        parser = Parser(command)
        import_module(f"megabert.commands.{command}").add_arguments(parser)
        assert next(action.choices for action in parser._actions if action.dest == dest) == get_args(values)


def test_function_gets_lists_and_plain_numbers():
    texts, top_k, _, second = read((text for text in np.array(["a", "b"])), top_k=np.int64(3))
    assert (texts, top_k, second) == (["a", "b"], 3, None)
    assert {*map(type, texts), type(top_k)} == {str, int}


def test_error_names_argument_index_and_value():
    with pytest.raises(ConfigError, match=r"^texts\[1\]=nan \(float\) is no text\."):
        read(["a", float("nan")])
    with pytest.raises(ConfigError, match=r"^texts=\{'a'\} \(set\) is no list of texts"):
        read({"a"})


def test_error_of_the_system_is_a_sentence():
    with pytest.raises(DataError, match=r"/nowhere: No such file or directory\. Check that the path exists"):
        read([], folder="/nowhere")
