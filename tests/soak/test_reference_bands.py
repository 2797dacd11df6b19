"""Curves of three seeds, and runs against them: other seeds are on track; another rate, other masks or text are not."""

import json
import math
import sys
from pathlib import Path

import pytest
from soak.soak_table import ROOT, SoakTable
from support.runs import TINY, Run, kill_everything

from data_prep.cli import main as build
from megabert.tooling.reports.on_track import Track, compare_with_curves

pytestmark = pytest.mark.soak

RECIPE = Path(__file__).with_name("on_track.yaml")
SPEECHES = "State of the Union"
"""Beginning of the source of the other text; the books are the text of the curves."""
SEEDS, OTHER_SEEDS = (42, 1, 2), (3, 4, 5)
CUT_AFTER = 100
"""Steps of 360 after which a run with something wrong is killed: by then it shows."""
ALARM = 2
"""Points of losses and accuracies outside of their bands, above which a run counts as wrong and not as another seed."""
RUNS = {
    # Which shards, and which flags.
    "a tenth of the rate": ("books", {"phases.0.learning_rate": 1.5e-3, "phases.1.learning_rate": 1e-3}),
    "ten times the rate": ("books", {"phases.0.learning_rate": 0.15, "phases.1.learning_rate": 0.1}),
    "half the masks": ("half", {}),
    "other text": ("speeches", {}),
}


TITLE = (
    f"runs of tests/soak/on_track.yaml against the curves of seeds {', '.join(map(str, SEEDS))} (four books, 1,000 "
    "pieces, 40% masked); other text: the State of the Union addresses, with 1,000 pieces of their own"
)
COLUMNS = f"{'run':<22} {'on track':<9} {'series':<18} first step outside of its band"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Shards of the books, of the books with half the masks, and of the speeches."""
    folder = tmp_path_factory.mktemp("data")
    lines = (ROOT / "examples" / "corpus" / "public_domain.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    of_speeches = [json.loads(line)["source"].startswith(SPEECHES) for line in lines]
    assert sum(of_speeches) == 28
    for name, is_speeches in (("books", False), ("speeches", True)):
        chosen = [line for line, is_one in zip(lines, of_speeches, strict=True) if is_one == is_speeches]
        (folder / f"{name}.jsonl").write_text("".join(chosen), encoding="utf-8")
    for name, text, masked in (("books", "books", 0.4), ("half", "books", 0.2), ("speeches", "speeches", 0.4)):
        words = ["--input", str(folder / f"{text}.jsonl"), "--language", "en", "--uncased", "--vocab-size", "1000"]
        words += ["--lengths", "16", "64", "--dupe-factor", "1", "--masked-lm-prob", str(masked), "--workers", "1"]
        assert build(["build", *words, "--validation-share", "0.1", "--output", str(folder / name)]) == 0
    return folder


@pytest.fixture(scope="module")
def train(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    def run(name: str, shards: str, seed: int, *, until: int | None = None, **flags: object) -> Path:
        flags = {**dict.fromkeys(TINY), "seed": seed, **flags}
        one = Run(folder / name.replace(" ", "_"), data / shards, recipe=str(RECIPE), flags=flags)
        if until is None:
            assert one.finish(timeout_s=900) == 0, one.output[-4000:]
            return one.run_dir
        process = one.start()
        try:
            one.wait_for_step(until, process, timeout_s=900)
        finally:
            kill_everything(process)
        return one.run_dir

    return run


@pytest.fixture(scope="module")
def curves(train, tmp_path_factory):
    sys.path.insert(0, str(ROOT))
    from benchmarks.reference_curves import write_curves

    path = tmp_path_factory.mktemp("curves") / "on_track-books.json"
    runs = [train(f"seed_{seed}", "books", seed) for seed in SEEDS]
    write_curves(runs, path, text="the four books", commands=["tests/soak/test_reference_bands.py"])
    return path


def add(table: SoakTable, name: str, track: Track) -> None:
    for tag, points in track.series.items():
        outside = [point for point in points if not point.is_inside]
        where = "-" if not outside else f"{outside[0].step}: {outside[0].value:.4f}, not {outside[0].low:.4f} to "
        where += "" if not outside else f"{outside[0].high:.4f}; outside at {len(outside)} of {len(points)} points"
        table.add(f"{name:<22} {'yes' if track.is_on_track else 'no':<9} {tag:<18} {where}")


def points_outside(track: Track) -> int:
    """Return how often losses and accuracies were outside of their bands."""
    scores = [points for tag, points in track.series.items() if "share" not in tag]
    return sum(not point.is_inside for points in scores for point in points)


@pytest.mark.parametrize("seed", OTHER_SEEDS)
def test_a_run_with_another_seed_is_on_track(seed, curves, train, table):
    track = compare_with_curves(train(f"seed_{seed}", "books", seed), curves)
    add(table, f"seed {seed}", track)
    assert track.is_on_track
    assert points_outside(track) < ALARM
    assert track.step == 360
    assert track.config == {}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_something_wrong_is_not_on_track(name, curves, train, table):
    shards, flags = RUNS[name]
    track = compare_with_curves(train(name, shards, 3, until=CUT_AFTER, **flags), curves)
    add(table, name, track)
    assert not track.is_on_track
    assert track.has_same_shards == (shards == "books")
    assert sorted(track.config) == sorted(flags)
    assert points_outside(track) >= ALARM, "not by the shards or the share of masked tokens alone"
    assert all(math.isfinite(points[-1].low) for points in track.series.values())
