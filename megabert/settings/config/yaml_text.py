"""YAML of users: recipes, build configurations and values of flags are read, and resolved configurations written.

PyYAML reads YAML 1.1, in which ``0100`` is 64, ``1:30`` is 90, ``1_000`` is 1000, ``2001-01-01`` a date and ``1e-4`` a
text. Here numbers are written as in YAML 1.2, without leading zeros: ``1e-4``, ``50e9``, ``0x1F``. Everything else
stays text, which a field that wants a number refuses.
"""

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from megabert.foundation.files import read_small

MAX_DEPTH = 50
MAX_NODES = 100_000
"""How many values a file may come to once every alias is the value that it repeats: a few aliases of aliases in a file
of 1 kB come to gigabytes."""
_UNREAD = ("int", "float", "timestamp", "value")
"""YAML 1.1's types whose words mean something else, or nothing, in YAML 1.2."""


class _Loader(yaml.SafeLoader):
    """Reads plain mappings, lists, texts, numbers, truth values and nothing else."""

    # Without those four types, by the first character of the words that they match.
    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's own name and form
        first: [(tag, word) for tag, word in resolvers if tag.rpartition(":")[2] not in _UNREAD]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a value, within bounds of depth and size, and without tags, which may name any type."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        is_alias = isinstance(event, yaml.AliasEvent)
        if getattr(event, "tag", None):
            raise _problem(event, f"the tag {event.tag} is not read; leave it out")
        if self._depth >= MAX_DEPTH:
            raise _problem(event, f"values are nested more than {MAX_DEPTH} deep")
        before = self._nodes
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise _problem(event, f"*{event.anchor} is inside the value that it repeats")
        # Where an alias repeats a value, it counts as much as that one.
        self._nodes += self._sizes[id(node)] if is_alias else 1
        if self._nodes > MAX_NODES:
            raise _problem(event, f"there are more than {MAX_NODES:,} values, those counted that aliases (*) repeat")
        self._sizes.setdefault(id(node), self._nodes - before)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Compose a mapping whose keys are text: ``no`` may be a language, and ``1.0`` a name.

        A key that is there twice is refused, of which PyYAML takes the last in silence.
        """
        node = super().compose_mapping_node(anchor)  # type: ignore[no-untyped-call]
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _problem(key, "a key is a list or a mapping; write a word")
            if key.value in lines:
                raise _problem(key, f"{key.value} is there twice (also in line {lines[key.value]}); remove one of them")
            lines[key.value] = key.start_mark.line + 1
            if key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Return a number that is written with a point or an exponent."""
        text = node.value.lower()  # .inf and .nan are read, too, so that a field can say that they are no number for it
        return read_number(text if text[-1].isdigit() or text[-1] == "." else text.replace(".", ""))


def read_number(text: str) -> int | float:
    """Return a number that is written with a point or an exponent; ``50e9`` is whole, ``50.0`` is not."""
    value = float(text)
    is_whole = "e" in text.lower() and abs(value) < 2**63 and value.is_integer()
    return int(Decimal(text)) if is_whole else value


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `_Loader`, or a reader of YAML 1.1, would read as something else."""


# A number of more digits than any field takes stays text, which the field then refuses by its name.
_INT = r"[-+]?(?:0|[1-9][0-9]{0,30}|0x[0-9a-fA-F]{1,30})$"
_DECIMAL = r"[-+]?(?:(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{0,60})?|\.[0-9]{1,60})"
_FLOAT = rf"(?!{_INT}){_DECIMAL}(?:[eE][-+]?[0-9]{{1,3}})?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(_INT), list("-+0123456789"))  # type: ignore[no-untyped-call]
    _class.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_FLOAT), list("-+0123456789."))  # type: ignore[no-untyped-call]
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)


def parse_yaml(text: str) -> Any:
    """Return the value that a YAML text holds.

    Raises:
        ValueError: It is not YAML, or more than a configuration needs; the message names the line.
    """
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from None


def own_yaml(module: str, name: str) -> dict[str, Any]:
    """Return the content of a YAML file next to a module of ours, given by its ``__file__``."""
    return parse_yaml(read_small(Path(module).with_name(name)).decode())  # type: ignore[no-any-return]


def write_yaml(values: Any) -> str:
    """Return plain values as YAML that `parse_yaml` reads back equal."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False)


def _problem(item: Any, text: str) -> yaml.MarkedYAMLError:
    """Return the error for a node or event, which knows its place."""
    return yaml.MarkedYAMLError(problem=text, problem_mark=item.start_mark)
