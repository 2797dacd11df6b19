"""Pictures of what `stats` says: a PNG file for each folder of shards, and one for the sources."""

from pathlib import Path
from typing import Any

from data_prep.checks.stats import LENGTH_BINS
from megabert.schema import Manifest


def write_plots(folder: Path, names: list[str], manifests: list[Manifest]) -> list[Path]:
    """Draw length histograms, and tokens by source.

    Args:
        folder: Where the pictures go; made if missing.
        names: Names of the folders of shards.
        manifests: Their manifests.

    Returns:
        The files written.
    """
    from matplotlib.figure import Figure  # not at import: it is slow to load

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, manifest in zip(names, manifests, strict=True):
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.add_subplot()
        counts = manifest.statistics["instances"]["train"]
        step = manifest.metadata.max_seq_length / LENGTH_BINS
        middles = [(index + 0.5) * step for index in range(LENGTH_BINS)]
        axes.bar(middles, counts["length_histogram"], width=0.9 * step)
        axes.set(xlabel="tokens", ylabel="training instances", title=f"{name}: {counts['rows']:,} instances")
        axes.set_yscale("log")
        paths.append(folder / f"lengths-{name}.png")
        figure.savefig(paths[-1])
    return [*paths, _plot_sources(folder, manifests[0].statistics["corpus"], Figure)]


def _plot_sources(folder: Path, corpus: dict[str, Any], make_figure: Any) -> Path:
    tokens = corpus["tokens_by_source"]
    figure = make_figure(figsize=(8, 1 + 0.4 * len(tokens)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh([name[-40:] for name in tokens], list(tokens.values()))
    axes.set(xlabel="tokens", title="tokens by source")
    path = folder / "sources.png"
    figure.savefig(path)
    return path
