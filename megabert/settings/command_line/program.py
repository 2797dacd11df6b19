"""What both programs are called by: the table of their commands."""

import argparse
import ast
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module

from megabert import __version__
from megabert.foundation.errors import ConfigError
from megabert.settings.command_line.failures import guarded
from megabert.settings.command_line.parser import Parser

Run = Callable[[argparse.Namespace], int | None]
"""The work of a command; takes its options and returns its exit code."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that the shell calls by its name.

    The module of a command has ``add_arguments(parser)``, which adds its flags, and ``run(options)``, which returns its
    exit code. Its docstring is the command's help (`Parser`). It is imported when the command is called.
    """

    name: str
    about: str
    """Its purpose, in a line."""
    package: str
    """Where the modules of the commands are, by the commands' names."""
    groups: Mapping[str, str]
    """Names of the commands, in groups by heading."""
    example: str
    rank_label: Callable[[], str] = str
    """Returns the prefix of this process's messages: ``[rank N] `` in ranks other than 0, else nothing."""
    while_parsing: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes the context in which a command line is read: all ranks read the same one, and rank 0 reports its errors."""

    @property
    def commands(self) -> list[str]:
        """The names of all commands."""
        return " ".join(self.groups.values()).split()

    def run(self, words: Sequence[str]) -> int:
        """Run the command that a command line names; return the exit code that the shell sees."""
        return guarded(lambda: self._run(words), program=self.name, rank_label=self.rank_label)

    def _run(self, words: Sequence[str]) -> int | None:
        if not words or words[0] in ("-h", "--help"):
            print(self.usage(), file=sys.stdout if words else sys.stderr)
            return 0 if words else ConfigError.exit_code
        if words[0] == "--version":
            print(__version__)
            return 0
        with self.while_parsing():
            _settle_environment()
            run, options = self.parse(words[0], words[1:])
        return run(options)

    def parse(self, name: str, words: Sequence[str]) -> tuple[Run, argparse.Namespace]:
        """Return what runs a command, and its options as they are read from a command line.

        Raises:
            ConfigError: There is no such command, or it cannot be called like this.
        """
        if name not in self.commands:
            from megabert.settings.config.names import did_you_mean

            raise ConfigError(f"{name}: no such command{did_you_mean(name, self.commands)}")
        module = import_module(f"{self.package}.{name.replace('-', '_')}")
        parser = Parser(f"{self.name} {name}", self.help_of(name))
        module.add_arguments(parser)
        return module.run, parser.parse(words)

    def help_of(self, name: str) -> str:
        """Return the docstring of a command's module, read from its source: imports of all would take seconds."""
        source = pkgutil.get_data(self.package, f"{name.replace('-', '_')}.py") or b""
        return ast.get_docstring(ast.parse(source)) or ""

    def usage(self) -> str:
        """Return the table of commands, each with the first line of its help. It fits a terminal of 80 by 24."""
        lines = [f"usage: {self.name} COMMAND ...; --help after a command says more", "", self.about, ""]
        headings, width = max(map(len, self.groups)), max(map(len, self.commands))
        for heading, commands in self.groups.items():
            for number, name in enumerate(commands.split()):
                about = self.help_of(name).splitlines()[0].rstrip(".")
                lines.append(f"{'' if number else heading:<{headings}}  {name:<{width}}  {about}")
        return "\n".join([*lines, "", f"Example: {self.example}"])


def _settle_environment() -> None:
    """Leave out a display that pictures do not need, and refuse a number of threads that numba would not read."""
    os.environ["MPLBACKEND"] = "agg"
    threads = os.environ.get("NUMBA_NUM_THREADS", "1")
    if not re.fullmatch("[1-9][0-9]{0,8}", threads):
        raise ConfigError(f"NUMBA_NUM_THREADS={threads!r} is no whole number of 1 or more. Correct it, or unset it.")
