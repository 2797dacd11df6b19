"""A program: its table of commands, each imported when it is called."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple

from megabert import __version__
from megabert.command_line.failures import guarded
from megabert.errors import ConfigError

Run = Callable[[Namespace], int | None]
"""What a command does with its options; returns its exit code."""


class Command(NamedTuple):
    """One command.

    Its module has ``add_arguments(parser)``, which describes it, and ``run(options)``, which returns its exit code.
    """

    module: str
    summary: str
    """One line for the table of commands."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What the shell calls by one name."""

    name: str
    about: str
    """What it is for, in a line."""
    groups: Mapping[str, Mapping[str, Command]]
    """Commands by name, in groups by heading."""
    example: str
    rank_label: Callable[[], str] = str
    """Returns what is put before this process's messages: ``[rank N] `` in ranks other than 0, else nothing."""
    while_parsing: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes what a command line is read in: all ranks of a job read the same one, and rank 0 reports what is wrong."""

    @property
    def commands(self) -> dict[str, Command]:
        """All commands by name."""
        return {name: command for group in self.groups.values() for name, command in group.items()}

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
            run, options = self.parse(words[0], words[1:])
        return run(options)

    def parse(self, name: str, words: Sequence[str]) -> tuple[Run, Namespace]:
        """Return what runs a command, and its options as they are read from a command line.

        Raises:
            ConfigError: There is no such command, or it cannot be called like this.
        """
        # pydantic and YAML: half of the time that the table of commands takes.
        from megabert.command_line.parser import Parser
        from megabert.config.loading import nearest

        if name not in self.commands:
            raise ConfigError(f"{name}: no such command{nearest(name, list(self.commands))}")
        command = self.commands[name]
        module = import_module(command.module)
        parser = Parser(f"{self.name} {name}")
        module.add_arguments(parser)
        return module.run, parser.parse(words)

    def usage(self) -> str:
        """Return the table of commands."""
        width = max(map(len, self.commands))
        lines = [f"usage: {self.name} COMMAND ...", "", self.about]
        for heading, commands in self.groups.items():
            lines += ["", f"{heading}:"]
            lines += [f"  {name:<{width}}  {command.summary}" for name, command in commands.items()]
        return "\n".join([*lines, "", f"{self.name} COMMAND --help says more. Example:", f"  {self.example}"])
