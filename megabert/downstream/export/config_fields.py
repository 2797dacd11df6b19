"""Every field of a Hugging Face ``config.json``, by family, and what megabert does with it: ``config_fields.yaml``.

A field is taken over (`Taken`), has to have one value, because other values are models that megabert does not have
(`Fixed`), or changes no number that is computed from the weights (`Unused`). There is no fourth way: a name that is in
none of these tables is refused, since it may be a misspelt field, or one that changes the model. If a file leaves a
field out, transformers' default holds. docs/families/config_json.md shows the tables; tests hold them against
transformers' classes and the code of its models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from megabert.settings.config.yaml_text import own_yaml

DERIVED: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "hidden_size / num_attention_heads": lambda sizes: sizes["hidden_size"] // sizes["num_attention_heads"],
    "hidden_size": lambda sizes: sizes["hidden_size"],
    "local_attention / 2": lambda sizes: sizes["local_attention"] // 2,
}
"""Values that follow from other fields."""


@dataclass(frozen=True)
class Taken:
    """A field that says something about our model."""

    default: Any
    """transformers' value if the file has none."""
    ours: str | None = None
    """The field of ``ModelConfig``; None if it has the same name."""
    none_is: Sequence[Any] = ()
    """Values that stand for None in our field; the first is written."""


@dataclass(frozen=True)
class Fixed:
    """A field that must have one value."""

    value: Any
    """The value, or a key of `DERIVED`."""
    default: Any = ...
    """transformers' value if the file has none, unless it is the same."""
    is_written: bool = False
    """Whether an export states it."""


@dataclass(frozen=True)
class Unused:
    """A field that changes nothing here, or nothing more."""

    why: str


Entry = Taken | Fixed | Unused
_KINDS: Mapping[str, Callable[[Any], Entry]] = {
    "taken": lambda said: Taken(**said) if isinstance(said, dict) else Taken(said),
    "fixed": Fixed,
    "written": partial(Fixed, is_written=True),
    "stated": lambda said: Fixed(said[0], default=said[1], is_written=True),
}
"""How a field's entry is made of its value in a YAML file:

- taken: the default, or the fields of `Taken`;
- fixed: the value;
- written: the value, which an export states;
- stated: the same, and transformers' value if the file has none.
"""


def field_tables(name: str) -> dict[str, dict[str, Entry]]:
    """Return the tables of a YAML file here; one that is ``like`` another has its fields as well.

    A kind holds fields with their values; ``unused`` holds names of fields after the reason.
    """
    tables: dict[str, dict[str, Entry]] = {}
    for title, kinds in own_yaml(__file__, name).items():
        tables[title] = table = dict(tables[kinds.pop("like")] if "like" in kinds else {})
        for why, names in kinds.pop("unused", {}).items():
            table |= dict.fromkeys(names.split(), Unused(why))
        for kind, entries in kinds.items():
            table |= {field: _KINDS[kind](said) for field, said in entries.items()}
    return tables


_TABLES = field_tables("config_fields.yaml")
CONFIG_FIELDS = {family: table for family, table in _TABLES.items() if not family.startswith("_")}
"""The fields of config.json, by family and name."""
