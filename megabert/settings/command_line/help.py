"""``--help``: the flags that most runs set; ``--help-all``: every flag, by section in the order of use."""

import argparse
import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from megabert.settings.config.fields import FieldRow

if TYPE_CHECKING:
    from megabert.settings.command_line.parser import Parser

_METAVARS = {int: "N", float: "X", str: "TEXT", dict: "YAML"}
_COLUMN = 30
"""Where the text of a flag begins."""

_NARROWEST = 40
"""Columns below which a terminal breaks the lines by itself, since words would no longer fit."""


def render_help(parser: "Parser", *, has_all: bool) -> str:
    """Return the help of a command.

    Args:
        parser: Its parser.
        has_all: Whether all flags are shown, or only the flags that most runs set.
    """
    width = max(_NARROWEST, shutil.get_terminal_size().columns - 2)
    page = argparse.RawDescriptionHelpFormatter(parser.prog, max_help_position=_COLUMN, width=width)
    arguments = [action for action in parser._actions if not action.option_strings]
    options = [action for action in parser._actions if action.option_strings]
    if parser.fields:
        names = "".join(f"{argument.metavar} " for argument in arguments)
        page.add_usage(f"%(prog)s {names}[--FLAG VALUE ...]", [], [])
    else:
        page.add_usage(None, parser._actions, [])
    page.add_text(textwrap.fill(parser.description or "", width))
    _add_section(page, "arguments", arguments)
    if not parser.fields:
        _add_section(page, "flags", options)
    elif not has_all:
        _add_section(page, "flags that most runs set", _first_flags(parser, options))
    else:
        _add_section(page, "flags of the command", options)
        for section, about in parser.sections.items():
            rows = [row for row in parser.fields.values() if row.section == section]
            fields = [_action(row, row.about, parser) for row in rows]
            _add_section(page, section or "fields of the configuration", fields, about)
    for paragraph in (parser.epilog or "").strip().split("\n\n"):  # lines that are indented stand as they are
        lines = [_folded(line, width) for line in paragraph.splitlines()]
        page.add_text("\n".join(lines) if "\n " in paragraph else textwrap.fill(paragraph, width))
    return page.format_help().rstrip()


def _folded(line: str, width: int) -> str:
    """Return a command of the examples in lines that fit, continued before a flag as a shell has it."""
    first, *flags = re.split(r"(?= --)", line)
    lines = [first]
    for flag in flags:
        if len(lines[-1] + flag) <= width - 2:
            lines[-1] += flag
        else:
            lines.append(f"     {flag}")
    return " \\\n".join(lines)


def _first_flags(parser: "Parser", options: Sequence[argparse.Action]) -> list[argparse.Action]:
    """Return the flags of the short help; a field is described by the first sentence of its documentation."""
    actions = {name: option for option in options for name in option.option_strings}
    for row in parser.fields.values():
        action = _action(row, re.split(r"(?<=\.)\s", row.about)[0], parser)
        actions[action.option_strings[0]] = action
    return [actions[f"--{name}"] for name in (*parser.first, "help", "help-all")]


def _add_section(
    page: argparse.HelpFormatter, title: str, actions: Sequence[argparse.Action], about: str | None = None
) -> None:
    page.start_section(title)
    page.add_text(about)
    for action in actions:  # options and fields are read in one list, so that all begin alike
        action.help = f"{action.help[:1].upper()}{action.help[1:]}" if action.help else action.help
    page.add_arguments(actions)
    page.end_section()


def _action(row: FieldRow, about: str, parser: "Parser") -> argparse.Action:
    """Return a field in the form in which argparse's formatter shows an option."""
    name, about = row.path.replace("_", "-"), about.replace("``", "").rstrip(".")
    values = "|".join([*(word for kind, word in _METAVARS.items() if kind in row.kinds), *row.choices])
    if row.is_list and any(choice not in about for choice in row.choices):
        about += f": {', '.join(row.choices)}"
    return argparse.Action(
        [f"--{name}", f"--no-{name}"] if row.is_boolean else [f"--{name}"],
        dest=row.path,
        nargs=0 if row.is_boolean else "+" if row.is_list else None,
        metavar="WORD" if row.is_list and row.choices else values,
        help=f"{about} ({_default(row, parser)})".replace("%", "%%"),
    )


def _default(row: FieldRow, parser: "Parser") -> str:
    """Return a default as a flag would have it. Fields without one are set by the recipe, if there are recipes."""
    if row.default == "required":
        return "default: the recipe's" if "recipe" in parser.first else "required, here or in a file"
    if isinstance(row.default, tuple):
        return f"default: {' '.join(map(str, row.default)) or '[]'}"
    is_word = row.default is None or isinstance(row.default, bool)
    return f"default: {str(row.default).lower() if is_word else row.default}"
