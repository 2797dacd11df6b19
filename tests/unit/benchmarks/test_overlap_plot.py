"""The plot of step time against collectives: a panel a world, a line a way of sending, in the right places."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.scaling.overlap_plot import HEIGHT, Measurement, save_plot

LINE = "{http://www.w3.org/2000/svg}polyline"


def test_lines_rise_with_what_was_measured(tmp_path):
    rows = [Measurement(collectives=x, overlapped=max(80, x), serial=80 + x) for x in (0, 72, 108)]
    save_plot(tmp_path / "plot.svg", {2: rows, 4: rows})
    lines = ElementTree.parse(tmp_path / "plot.svg").getroot().findall(LINE)
    assert len(lines) == 6
    serial, overlapped, ideal = (
        [tuple(map(float, p.split(","))) for p in line.get("points").split()] for line in lines[:3]
    )
    pixels = HEIGHT / (188 * 1.1)  # a millisecond
    for line, expected in ((serial, (0, 72, 108)), (overlapped, (0, 0, 28)), (ideal, (0, 0, 28))):
        rises = [round((line[0][1] - y) / pixels) for _, y in line]
        assert rises == list(expected)
