"""Tables and durations for a terminal or a log; the one home of `tabulate`."""

from collections.abc import Iterable, Sequence

from tabulate import tabulate


def render_table(rows: Iterable[Sequence[object]], *, headers: Sequence[str] = (), align: str = "") -> str:
    """Return rows as aligned columns, two blanks apart, without rules.

    Args:
        rows: Cells of each row. ``str`` is taken of each: format numbers beforehand.
        headers: Names of the columns; none are shown if empty.
        align: One letter a column, ``l`` for left or ``r`` for right. Columns without a letter are aligned left.
    """
    # The headers are the first row: as headers, tabulate would widen their columns.
    texts = [[str(cell) for cell in row] for row in ([headers, *rows] if headers else rows)]
    if not texts:
        return ""
    width = max(map(len, texts))
    sides = [{"l": "left", "r": "right"}[letter] for letter in align.ljust(width, "l")]
    # Without disable_numparse "1.50" would become 1.5.
    table = tabulate(texts, tablefmt="plain", colalign=sides, disable_numparse=True, preserve_whitespace=True)
    return "\n".join(line.rstrip() for line in table.splitlines())


def span(seconds: float) -> str:
    """Return a duration in its largest unit of which there are at least two; below a second with two digits."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{round(seconds, 3):.2g} s"
