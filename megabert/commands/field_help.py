"""The fields of a configuration as a help text."""

import textwrap

from megabert.config.loading import field_table
from megabert.config.recipes import engine_names

_WIDTH, _INDENT = 100, " " * 8


def field_help(cls: type, *, has_hyphens: bool = False) -> str:
    """Return a paragraph for each field: its flag, its default, what it means, which words it takes.

    Args:
        cls: A configuration.
        has_hyphens: Whether fields outside of sections are shown as switches are, ``--learning-rate``; both forms are
            read.
    """
    lines = []
    for row in field_table(cls):
        about = row.about.replace("``", "")
        named = [choice for choice in row.choices if choice not in about]
        if len(row.choices) > 1 and named:
            about += f" One of {', '.join(row.choices)}."
        if row.path == "engine":
            about += f" Shipped: {', '.join(engine_names())}."
        flag = row.path.replace("_", "-") if has_hyphens and "." not in row.path else row.path
        default = "required" if row.default == "required" else f"default: {_shown(row.default)}"
        lines.append(f"  --{flag} ({default})")
        lines += textwrap.wrap(about, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines)


def _shown(default: object) -> str:
    """Return a default as a flag would have it."""
    if isinstance(default, tuple):
        return f"[{', '.join(map(str, default))}]"
    return str(default).lower() if default is None or isinstance(default, bool) else str(default)
