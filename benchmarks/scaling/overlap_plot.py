"""The measurements of `overlap` as an SVG: step time against the time of the collectives, a panel for each world."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 320, 240, 46
COLORS = {"one after the other": "#b33", "overlapped": "#06c", "larger of both": "#888"}
DASHED = "larger of both"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Milliseconds of a step at one speed of the link."""

    collectives: float
    overlapped: float
    serial: float


def save_plot(path: Path, worlds: Mapping[int, Sequence[Measurement]]) -> None:
    """Draw a panel for each number of ranks.

    Args:
        path: The SVG to write.
        worlds: Ranks -> measurements, the first without any time in collectives.
    """
    highest = max(max(m.overlapped, m.serial) for rows in worlds.values() for m in rows) * 1.1
    panels = [
        _panel(MARGIN + number * (WIDTH + MARGIN), ranks, rows, highest=highest)
        for number, (ranks, rows) in enumerate(worlds.items())
    ]
    legend = [
        f'<text x="{MARGIN + 10 + 200 * number}" y="{HEIGHT + 2 * MARGIN}" fill="{color}">{name}</text>'
        for number, (name, color) in enumerate(COLORS.items())
    ]
    size = f'width="{len(worlds) * (WIDTH + MARGIN) + MARGIN}" height="{HEIGHT + 2 * MARGIN + 14}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    background = '<rect width="100%" height="100%" fill="white"/>'
    path.write_text("\n".join([head, background, *panels, *legend, "</svg>", ""]), encoding="utf-8")


def _panel(left: float, ranks: int, rows: Sequence[Measurement], *, highest: float) -> str:
    bottom = HEIGHT + MARGIN / 2
    widest = rows[-1].collectives

    def place(x: float, y: float) -> str:
        return f"{left + WIDTH * x / widest:.1f},{bottom - HEIGHT * y / highest:.1f}"

    alone = rows[0].overlapped  # without collectives: the layers, and what engine and scheduling take
    lines = {
        "one after the other": [(m.collectives, m.serial) for m in rows],
        "overlapped": [(m.collectives, m.overlapped) for m in rows],
        "larger of both": [(m.collectives, max(m.collectives, alone)) for m in rows],
    }
    parts = [
        f'<path d="M{place(0, highest)} L{place(0, 0)} L{place(widest, 0)}" fill="none" stroke="black"/>',
        f'<text x="{left + 10}" y="{MARGIN / 2}">{ranks} ranks: ms a step</text>',
        f'<text x="{left + WIDTH}" y="{bottom + 30}" text-anchor="end">ms of collectives</text>',
    ]
    for x in sorted({m.collectives for m in rows}):
        at = place(x, 0).split(",")
        parts.append(f'<text x="{at[0]}" y="{bottom + 14}" text-anchor="middle">{x:.0f}</text>')
    for y in range(0, int(highest), 50):
        at = place(0, y).split(",")
        parts.append(f'<text x="{left - 5}" y="{float(at[1]) + 4:.1f}" text-anchor="end">{y}</text>')
    for name, points in lines.items():
        dash = ' stroke-dasharray="4 4"' if name == DASHED else ""
        drawn = " ".join(place(*point) for point in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{COLORS[name]}" stroke-width="2"{dash}/>')
    return "\n".join(parts)
