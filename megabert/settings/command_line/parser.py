"""The parser that each command describes itself to, and the kinds of values that it reads."""

import argparse
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

from megabert.foundation.errors import ConfigError
from megabert.foundation.remote_files import is_url
from megabert.settings.command_line.arguments import Device
from megabert.settings.command_line.help import render_help
from megabert.settings.config.fields import FieldRow, field_table, pattern_of
from megabert.settings.config.loading import shipped_names

Number = TypeVar("Number", int, float)


def _text_of(word: str) -> str:
    """Return text, which is not empty, and is UTF-8."""
    _require(word)
    try:
        word.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{word!a} is not UTF-8; convert it, or use a terminal with UTF-8") from None
    return word


def _require(word: str) -> str:
    """Refuse an empty word: it is a variable of the shell that is not set."""
    if not word:
        raise argparse.ArgumentTypeError("the value is empty; give one, or set the variable that holds it")
    return word


def _path_of(word: str) -> Path:
    """Return the path that a word names; ``Path("")`` would be the working folder, and a URL would lose a slash."""
    if is_url(word):
        raise argparse.ArgumentTypeError(
            f"{word} is a URL, and this has to be on this machine; copy it, or name its folder in data.cache. URLs are "
            "read as data.path, data.sources and phases.N.data of a run and as --input, and written as --output of a "
            "build"
        )
    return Path(_require(word))


def output_path(word: str) -> Path:
    """Read the path of a file or folder that the command writes; no two flags may name the same one."""
    return _path_of(word)


def whole(word: str) -> int:
    """Read a whole number as it is written in configurations: digits alone, at most 18 of them."""
    if not re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", word):
        raise argparse.ArgumentTypeError(f"{word!r} is no whole number")
    return int(word)


def number(word: str) -> float:
    """Read a finite number as it is written in configurations."""
    from megabert.settings.config.yaml_text import parse_yaml

    value: Any = parse_yaml(word) if re.fullmatch("[-+.0-9eE]+", word) else None
    if type(value) not in (int, float) or not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{word!r} is no number")
    return float(value)


def bounded(
    read: Callable[[str], Number], *, least: float | None = None, above: float | None = None, most: float | None = None
) -> Callable[[str], Number]:
    """Return the ``type`` of an argument that is a number within bounds; `read` is `whole` or `number`."""
    bounds = {"at least": least, "above": above, "at most": most}
    words = " and ".join(f"{name} {bound:,}" for name, bound in bounds.items() if bound is not None)

    def read_bounded(word: str) -> Number:
        value = read(word)
        has_lower = (least is None or value >= least) and (above is None or value > above)
        if not has_lower or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{word} is not {words}")
        return value

    return read_bounded


positive = bounded(whole, least=1)
"""Reads a whole number of 1 or more."""


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that also reads configuration fields by their path.

    After `parse`, ``fields`` of the namespace holds the given fields as nested mappings, and ``given`` the names of
    all flags that were typed. Errors are ConfigErrors.

    Args:
        prog: Program and command.
        doc: The docstring of the command: a sentence above the flags, and the text below them. Its section "Arguments",
            if there is one, has an entry for each argument of the command: its name, the form of its value, its help.
    """

    def __init__(self, prog: str, doc: str = "") -> None:
        text, _, rest = doc.partition("\n\nArguments:")
        entries, _, examples = rest.partition("\n\n")
        description, _, epilog = f"{text}\n\n{examples}".partition("\n\n")
        # Two spaces or a line feed end the name and the form of the value.
        heads = (re.split(r" {2,}|\n", entry, maxsplit=1) for entry in re.split(r"\n  (?=\S)", entries)[1:])
        self.described = {head.split()[0]: (head.split()[1:], " ".join(about.split())) for head, about in heads}
        """Form and help of the command's arguments, by the name that begins an entry."""
        super().__init__(prog, description=description, epilog=epilog, add_help=False, allow_abbrev=False)
        # Numbers are strict, and nothing is empty.
        for kind, read in ((None, _text_of), (str, _text_of), (Path, _path_of), (int, whole), (float, number)):
            self.register("type", kind, read)
        self.fields: dict[str, FieldRow] = {}
        """The configuration's fields by path."""
        self.sections: dict[str, str] = {}
        """The purpose of each section of the configuration, by the path before its fields, in the order of the help."""
        self.idle: set[str] = set()
        """Fields of the configuration that have no effect on this command."""
        self.rules: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
        """Flags that need others or exclude them (`add_rule`)."""
        self.first: Sequence[str] = ()
        """The flags that everybody sets, in the order of the help; the others are shown by ``--help-all``."""
        self.add_argument("-h", "--help", action=_ShowHelp, help="show this and exit")

    def add_argument(self, *names: str, **wishes: Any) -> argparse.Action:
        """Add an argument with the form of its value and the help that the command's docstring has."""
        forms, about = self.described.get(wishes.get("metavar", names[0] if names else ""), ([], None))
        return super().add_argument(*names, **{"help": about, **({"metavar": forms[0]} if forms else {}), **wishes})

    def add_fields(
        self, cls: type, *, first: Sequence[str], sections: Sequence[str] = (), without: Sequence[str] = ()
    ) -> None:
        """Let the fields of a configuration be set by flags.

        Args:
            cls: The configuration, a pydantic dataclass.
            first: The flags that everybody sets, options and fields alike, as they are written without ``--``.
            sections: Sections in the order of use; those left out follow in the order of the configuration.
            without: Fields and sections that have no effect on this command, and are no flags of it.
        """
        self.add_argument("--help-all", action=_ShowHelp, help="show all flags, by section")
        self.first = first
        rows = field_table(cls)
        self.idle = {row.path for row in rows if row.path in without or row.section in without}
        self.fields = {row.path: row for row in rows if row.path not in self.idle}
        abouts = {row.section: row.section_about for row in self.fields.values()}
        self.sections = {name: abouts[name] for name in dict.fromkeys([*sections, *abouts])}

    def add_recipe(self, what: str, *, default: str | None = "bert_large", about: str = "default: bert_large") -> None:
        """Add ``--recipe`` and ``--config``.

        Args:
            what: Purpose of the recipe, for the help.
            default: The recipe if none is given.
            about: The default, for the help.
        """
        text = f"{what}: {', '.join(shipped_names('recipe'))}, or a file ({about})"
        self.add_argument("--recipe", default=default, metavar="NAME|FILE", help=text)
        self.add_config_files(under="the recipe")

    def add_config_files(self, *, under: str) -> None:
        """Add ``--config``, to a command without positional arguments, which further files would swallow.

        Args:
            under: The layer just below the files, for the help.
        """
        text = f"YAML files that change fields, after {under} and before flags; later ones win"
        self.add_argument("--config", type=Path, action="extend", nargs="+", default=[], metavar="FILE", help=text)

    def add_rule(self, flag: str, *, needs: Sequence[str] = (), excludes: Sequence[str] = ()) -> None:
        """Refuse a flag that would have no effect.

        Args:
            flag: The flag, as it is typed.
            needs: Flags of which one has to be given as well.
            excludes: Flags that it may not be given with.
        """
        self.rules.append((flag, tuple(needs), tuple(excludes)))

    def _check_rules(self, given: Collection[str]) -> None:
        idle = [flag for flag in given if pattern_of(flag[2:].replace("-", "_")) in self.idle]
        refuse_flags(idle, given, f"on {self.prog}")
        for flag, needs, excludes in self.rules:
            if flag in given and needs and not set(needs) & set(given):
                raise ConfigError(f"{flag} has no effect without {' or '.join(needs)}. Add it, or leave {flag} out.")
            for other in [other for other in excludes if flag in given and other in given]:
                raise ConfigError(f"{flag} and {other} exclude each other. Leave one of the two out.")

    def _check_outputs(self, options: argparse.Namespace) -> None:
        """Refuse two outputs of one path, of which the second would replace the first."""
        written: dict[Path, str] = {}
        for action in self._actions:
            path = getattr(options, action.dest, None) if action.type is output_path else None
            if path is not None:
                flag = action.option_strings[0]
                other = written.setdefault(path.absolute().parent.resolve() / path.name, flag)
                if other != flag:
                    raise ConfigError(f"{other} and {flag} both name {path}. Name two paths.")

    def add_stops(self, *, dry_run: str) -> None:
        """Add ``--dry-run`` and ``--print-config``, which end a command before it begins its work."""
        self.add_argument("--dry-run", action="store_true", help=f"{dry_run}, and stop")
        self.add_argument("--print-config", action="store_true", help="print the resolved configuration, and stop")

    def add_device(self) -> None:
        """Add ``--device``."""
        self.add_argument("--device", choices=get_args(Device), default="auto", help="default: auto, a GPU if any")

    def add_model(self) -> None:
        """Add ``--model`` and ``--checkpoint``, which name the weights that ``downstream.export.sources`` opens."""
        text = "run folder, Hugging Face folder, or a shipped model: english, korean"
        self.add_argument("--model", required=True, metavar="DIR|RUN", help=text)
        self.add_checkpoint()

    def add_checkpoint(self) -> None:
        """Add ``--checkpoint``."""
        text = "of a run folder: last, best (lowest held-out loss of its last phase) or a step (default: last)"
        self.add_argument("--checkpoint", default="last", metavar="WHICH", help=text)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Read a command line.

        Raises:
            ConfigError: A flag is unknown, or a value is missing or not allowed. Unknown fields and wrong values of
                fields are found later, all at once, where the configuration is built.
        """
        # pydantic and YAML: imported above, they would double the time that the table of commands takes.
        from megabert.settings.command_line.flags import flag_name, nest, take_flag

        names = {option[2:].replace("-", "_"): option for option in self._option_string_actions if option[:2] == "--"}
        # A file to read is --input elsewhere.
        bare = [action for action in self._actions if not action.option_strings]
        names_of_bare = ((name, one) for one in bare for name in (one.dest, *["input"] * (one.metavar == "FILE")))
        positional = {name: str(one.metavar or one.dest) for name, one in names_of_bare}
        # Each word goes to one of two readers: argparse takes the command's own options, in the spelling that it knows,
        # and the other flags are fields, with their values.
        own: list[str] = []
        given: set[str] = set()
        fields: dict[str, Any] = {}
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
                given.add(names[name])
            else:
                path, value = take_flag(rest, self.fields, names.values(), positional)
                fields[path] = value
        options = self.parse_args(own)
        options.given = {*given, *(f"--{path.replace('_', '-')}" for path in fields)}
        self._check_rules(options.given)
        self._check_outputs(options)
        options.fields = nest(fields)
        return options

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        raise ConfigError(f"{message}. More: {self.prog} --help")


def refuse_flags(flags: Collection[str], given: Collection[str], where: str) -> None:
    """Refuse flags that would change nothing.

    Args:
        flags: The flags that have no effect, as they are typed.
        given: The flags that were typed.
        where: The command or the case, for the message.

    Raises:
        ConfigError: One of the flags was typed.
    """
    for flag in sorted(set(flags) & set(given)):
        raise ConfigError(f"{flag} has no effect {where}. Leave it out.")


class _ShowHelp(argparse.Action):
    """Prints the help, short or whole, and ends the program."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        has_all = not parser.fields or self.option_strings == ["--help-all"]
        print(render_help(parser, has_all=has_all), flush=True)
        parser.exit()
