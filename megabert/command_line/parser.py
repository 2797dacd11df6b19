"""The parser of one command: its own options, and the fields of its configuration as flags."""

import argparse
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

from megabert.command_line.flags import Flag, flag_name, nest, take_flag
from megabert.command_line.help import render_help
from megabert.config.fields import FieldRow, field_table
from megabert.config.loading import nearest
from megabert.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that also reads configuration fields by their path.

    After `parse`, ``fields`` of the namespace holds the given fields as nested mappings and ``field_flags`` the flags
    as they were given. Errors are ConfigErrors.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, add_help=False, allow_abbrev=False)
        self.examples: list[str] = []
        """Command lines shown at the end of the help."""
        self.notes = ""
        """What else the help says after the flags, line for line."""
        self.fields: dict[str, FieldRow] = {}
        """The configuration's fields by path."""
        self.sections: dict[str, str] = {}
        """What each section of the configuration is about, by the path before its fields, in the order of the help."""
        self.first: Sequence[str] = ()
        """The flags that everybody sets, in the order of the help; the others are shown by ``--help-all``."""
        self.add_argument("-h", "--help", action=_ShowHelp, help="show this and exit")

    def add_fields(self, cls: type, *, first: Sequence[str], sections: Sequence[str] = ()) -> None:
        """Let the fields of a configuration be set by flags.

        Args:
            cls: The configuration, a pydantic dataclass.
            first: The flags that everybody sets, options and fields alike, as they are written without ``--``.
            sections: Sections in the order of use; those left out follow in the order of the configuration.
        """
        self.add_argument("--help-all", action=_ShowHelp, help="show all flags, by section")
        self.first = first
        self.fields = {row.path: row for row in field_table(cls)}
        abouts = {row.section: row.section_about for row in self.fields.values()}
        self.sections = {name: abouts[name] for name in dict.fromkeys([*sections, *abouts])}

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Read a command line.

        Raises:
            ConfigError: A flag is unknown, or a value is missing or not allowed. Unknown fields and wrong values of
                fields are found later, all at once, where the configuration is built.
        """
        names = {option[2:].replace("-", "_"): option for option in self._option_string_actions if option[:2] == "--"}
        own: list[str] = []
        flags: list[Flag] = []
        rest = deque(words)
        while rest:
            name = flag_name(rest[0])
            if rest[0] == "--":
                own += rest
                break
            if name is None:
                own.append(rest.popleft())
            elif name in names:
                _, equals, value = rest.popleft().partition("=")
                own.append(f"{names[name]}{equals}{value}")
            elif self.fields:
                flags.append(take_flag(rest, self.fields))
            else:
                raise ConfigError(f"{rest[0]}: no such flag{nearest(name, list(names))}. More: {self.prog} --help")
        options = self.parse_args(own)
        options.fields, options.field_flags = nest(flags), flags
        return options

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        raise ConfigError(f"{message}. More: {self.prog} --help")


class _ShowHelp(argparse.Action):
    """Prints the help, short or whole, and ends the program."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        has_all = not parser.fields or self.option_strings == ["--help-all"]
        print(render_help(parser, has_all=has_all), flush=True)
        parser.exit()
