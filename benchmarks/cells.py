"""Comparisons made of cells, runs of ``megabert pretrain``, each a line of results: a second call continues."""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

ROOT = Path(__file__).parents[1]
CORPORA = {
    # file, and flags of the build: the demo's vocabularies (examples/demo.sh)
    "english": ("public_domain.jsonl", ("--language", "en", "--uncased", "--vocab-size", "2048")),
    "korean": ("korean.jsonl", ("--language", "ko", "--vocab-size", "4096")),
}
Result = dict[str, Any]
Cell = TypeVar("Cell")


class Curve(NamedTuple):
    """A line of a picture with a band around it."""

    label: str
    x: Sequence[float]
    runs: Sequence[Sequence[float]]
    """The values of each seed at these x."""


def parser_of(doc: str | None, package: str, *, name: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all comparisons share.

    Args:
        doc: Docstring of the program.
        package: ``__file__`` of the program, beside which the results lie.
        name: Name of its folder under ``build``.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    results = Path(package).parent / "results.jsonl"
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / name, help="shards and unfinished runs")
    parser.add_argument("--results", type=Path, default=results, help="finished cells, JSON Lines")
    parser.add_argument("--plot", type=Path, help="draw the curves into this file, SVG or PNG by its name")
    parser.add_argument("--report", action="store_true", help="run nothing, show the finished cells")
    return parser


def read_results(path: Path) -> list[Result]:
    """Return the finished cells of a file, none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_missing(
    cells: Iterable[Cell],
    results: list[Result],
    path: Path,
    *,
    key: Callable[[Any], object],
    run: Callable[[Cell], Result],
) -> None:
    """Run the cells that have no result yet; append each result to the file, then read what other calls appended too.

    Args:
        cells: Cells in the order in which they are run; an iterator may read ``results`` when it is asked.
        results: Finished cells, kept up to date with the file.
        path: Their file.
        key: What identifies a cell; it is also given results.
        run: Runs a cell.
    """
    for cell in cells:
        if key(cell) not in {key(argparse.Namespace(**result)) for result in results}:
            line = json.dumps(run(cell)) + "\n"
            with path.open("a") as file:
                file.write(line)
            results[:] = read_results(path)


def call(module: str, *arguments: object) -> None:
    """Run a program of this repository in a process of its own; its output is shown only if it fails.

    Raises:
        RuntimeError: It failed; the message ends with its last words.
    """
    words = [str(argument) for argument in arguments]
    done = subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(words)}: exit {done.returncode}\n{done.stderr[-3000:]}")


def words_of(flags: dict[str, object]) -> list[str]:
    """Return flags as words of a command line."""
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def build_shards(corpus: str, output: Path, *flags: object, lengths: Sequence[int]) -> Path:
    """Build the shards of a bundled corpus with a held-out share of 0.06, or find them finished; return the folder."""
    if not (output / "instances" / str(lengths[-1]) / "manifest.json").exists():
        source = ROOT / "examples" / "corpus" / CORPORA[corpus][0]
        words = ("--input", source, "--output", output, *flags, "--lengths", *lengths)
        call("data_prep", "build", *words, "--validation-share", "0.06", "--workers", "1")
    return output


def losses_at_mask(run_dir: Path, steps: Sequence[int], *, max_instances: int) -> dict[str, Any]:
    """Score checkpoints of a run as ``megabert report`` does the last one.

    Returns:
        ``loss``, in nats at held-out [MASK] positions by checkpoint, the ``unigram``'s loss and the number of
        ``positions`` there.
    """
    from megabert.tooling.reports.report import report_run, score_positions

    *_, report = report_run(run_dir)
    at_mask = [score_positions(run_dir, report, checkpoint=str(step), max_instances=max_instances)[0] for step in steps]
    return {
        "loss": [round(row.model, 4) for row in at_mask],
        "unigram": round(at_mask[0].unigram, 4),
        "positions": at_mask[0].count,
    }


def children_cpu_s() -> float:
    """Return the CPU seconds of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def spread(values: Sequence[float]) -> str:
    """Return mean and range."""
    return f"{statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def draw_panels(
    panels: dict[tuple[str, str], list[Curve]], path: Path, *, y_label: str, name: str, **style: Any
) -> None:
    """Draw panels side by side: means of the seeds, bands from least to greatest.

    Args:
        panels: Curves by title and label of the x-axis.
        path: File to write; an SVG has the same bytes each time.
        y_label: Label of the first panel's y-axis.
        name: What the ids in an SVG are made from.
        style: ``sharey``; ``zero_line`` draws a line at 0; ``bottom`` is the least y.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name})
    from matplotlib import pyplot

    size = (5 * len(panels), 4)
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=size, dpi=120, sharey=style.get("sharey", False), squeeze=False
    )
    for axis, ((title, x_label), curves) in zip(axes[0], panels.items(), strict=True):
        for curve in curves:
            columns = list(zip(*curve.runs, strict=True))
            (line,) = axis.plot(curve.x, [statistics.fmean(column) for column in columns], label=curve.label)
            least, greatest = list(map(min, columns)), list(map(max, columns))
            axis.fill_between(curve.x, least, greatest, color=line.get_color(), alpha=0.2)
        if style.get("zero_line"):
            axis.axhline(0, color="black", linewidth=0.5)
        axis.set_title(title)
        axis.set_xlabel(x_label)
    axes[0][0].set_ylabel(y_label)
    axes[0][0].set_ylim(bottom=style.get("bottom"))
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
