"""How often a run reads each text: its passes over sources and builds, and a warning of too many."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from megabert.data.mixture import Mixture
from megabert.foundation.remote_files import is_url
from megabert.settings.config.run import RunConfig

MAX_PASSES = 40
"""Passes over the corpus without a warning: Devlin et al. 2019 made about 40 epochs."""


def name_by_build(config: RunConfig, train: Mixture, passes: dict[str, float]) -> dict[str, float]:
    """Name the passes over a single build by its folder or URL, if a phase names data of its own: they may differ."""
    if "" not in passes or all(phase.data is None for phase in config.phases):
        return passes
    place = train.first.place if is_url(train.first.place) else str(Path(train.first.place).absolute())
    return {re.sub("/instances/[0-9]+$", "", place): passes[""]}


def sum_by_source(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of the numbers that have the same name."""
    return {name: sum(part.get(name, 0.0) for part in parts) for name in dict.fromkeys(chain(*parts))}


def title_of(source: str) -> str:
    """Return a source in words; a single build has no name, or its place."""
    return f"the text of {source}" if "/" in source else f"source {source}" if source else "the corpus"


def warn_of(passes: Mapping[str, float]) -> list[str]:
    """Return a warning for each source that a run reads more often than BERT's own training read its corpus.

    Args:
        passes: Passes over each source by its name, which is empty for a single build, or its place.
    """
    return [
        f"WARNING: {count:,.1f} passes over {title_of(name)}, more than {MAX_PASSES}. BERT "
        "itself made about 40; a model that reads the same text more often learns it by heart. Add text, "
        f"{'lower its share, ' if name and '/' not in name else ''}or take fewer steps (--phases.N.steps)."
        for name, count in passes.items()
        if count > MAX_PASSES
    ]
