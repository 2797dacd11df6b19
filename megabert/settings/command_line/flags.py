"""Flags that set fields of a configuration: ``--section.field VALUE``, by the type of the field.

The table of fields comes from the configuration's dataclass, so a flag cannot differ from its field in name, type,
choices or default. Hyphens and underscores are both read, in every part of the path but the name of a source.
"""

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from megabert.foundation.errors import ConfigError
from megabert.settings.config.fields import FieldRow, pattern_of
from megabert.settings.config.names import closest, named_elsewhere
from megabert.settings.config.yaml_text import parse_yaml

_FLAG = re.compile(r"--[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_BOOLEANS = ("true", "false", "yes", "no", "on", "off")
_SOURCES = ("data.sources", "phases.N.mixture")
"""Fields whose keys are names of sources, in which a hyphen is not an underscore."""
_NULLS = ("null", "Null", "NULL", "~")


def flag_name(word: str) -> str | None:
    """Return the name that a word of the command line sets, with underscores; None for a value."""
    if not _FLAG.fullmatch(word):
        return None
    return word[2:].partition("=")[0].replace("-", "_")


def take_flag(
    words: deque[str],
    fields: Mapping[str, FieldRow],
    others: Collection[str] = (),
    positional: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, Any]:
    """Take one flag off the front of the command line, and return the dotted path of its field and its value.

    Args:
        words: The remaining words; the first one is a flag.
        fields: The fields that flags may set, by path; elements of a list are numbered N.
        others: Flags that set no field, as they are typed.
        positional: Arguments without a flag: their meaning, as a flag is named, and their form in the help.

    Raises:
        ConfigError: The value is missing or is no YAML, or the flag is none but looks like one of ``others``. Other
            unknown fields are left to the configuration, which names all problems at once.
    """
    word = words.popleft()
    name, equals, text = word[2:].partition("=")
    section, dot, key = name.rpartition(".")
    section = section.replace("-", "_")
    path = section + dot + (key if pattern_of(section) in _SOURCES else key.replace("-", "_"))
    row = fields.get(pattern_of(path))
    # --no-NAME and --NAME alone set a field that is true or false; a word that is no truth value is not its value.
    negated = fields.get(pattern_of(path.removeprefix("no_")))
    if row is None and negated is not None and negated.is_boolean and not equals:
        return path.removeprefix("no_"), False
    if row is None and not any(path.startswith(f"{open_}.") for open_, one in fields.items() if dict in one.kinds):
        known = [*others, *(f"--{field.replace('_', '-')}" for field in fields)]
        meant, is_certain = meant_flag(name, known)
        if not is_certain and (argument := named_elsewhere(name, [*positional])):
            raise ConfigError(f"--{name}: no such flag; {positional[argument]} is written without one")
        has_value = bool(equals or (words and not words[0].startswith("--")))
        if is_certain or meant in others or not has_value or not fields:
            hint = f"did you mean {meant}?" if meant else "see --help-all" if fields else "see --help"
            raise ConfigError(f"--{name}: no such flag; {hint}")
    if equals:
        return path, _value(row, word, [text])
    if row is not None and row.is_boolean and not (words and words[0].lower() in _BOOLEANS):
        return path, True
    values = _take_values(words, several=row is not None and row.is_list)
    if not values:
        raise ConfigError(f"{word}: a value is missing. Write {word} VALUE.")
    return path, _value(row, word, values)


def meant_flag(name: str, known: Sequence[str]) -> tuple[str | None, bool]:
    """Return the flag that an unknown one is likely to mean, if any, and whether it is the same thing for certain.

    Args:
        name: The unknown flag without ``--``.
        known: The flags that there are, as they are typed.
    """
    flags = {flag[2:].replace("-", "_"): flag for flag in known}
    path = named_elsewhere(name, [*flags])
    if path is not None:
        return flags[path].replace(".N.", ".0."), True
    return closest(f"--{name}", known), False


def nest(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by their dotted paths as nested mappings; of values for one field the last one counts.

    Raises:
        ConfigError: A path goes below another one's value.
    """
    values: dict[str, Any] = {}
    for path, value in fields.items():
        *sections, name = path.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--{path}: {section} was already given a value of its own.")
        inner[name] = dict(value) if isinstance(value, Mapping) else value
    return values


def _take_values(words: deque[str], *, several: bool) -> list[str]:
    """Take the value of a flag: one word, or for a list all words up to the next flag, or one list in brackets."""
    values: list[str] = []
    while words and not words[0].startswith("--") and (several or not values):
        values.append(words.popleft())
        if values[0].startswith("["):
            break
    return values


def _value(row: FieldRow | None, flag: str, texts: list[str]) -> Any:
    """Read a value as YAML; a field that is text takes it as it is written."""
    if row is None or not row.is_list:
        return _scalar(flag, texts[0], is_text=row is not None and row.is_text)
    if len(texts) == 1 and (texts[0].startswith("[") or texts[0] in _NULLS):
        return _scalar(flag, texts[0], is_text=False)
    return [_scalar(flag, text, is_text=row.is_text) for text in texts]


def _scalar(flag: str, text: str, *, is_text: bool) -> Any:
    if not text or (is_text and text not in _NULLS and text[0] not in "\"'"):
        return text
    try:
        return parse_yaml(text)
    except ValueError as error:
        shown = text if len(text) < 100 else f"{text[:100]}..."
        raise ConfigError(f"{flag}: {shown!r} is no YAML value ({error}). Quote it: '\"{shown}\"'.") from None
