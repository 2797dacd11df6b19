"""What to expect of a recipe: the result of its published counterpart, and the curves of runs of ours.

``recipes/reference/published.yaml`` has the published results of all recipes, ``recipes/reference/NAME-TEXT.json`` the
curves of a recipe that we have run, with their seeds, text, commands and commit.
``benchmarks/reference_curves.py`` writes such a file from run folders.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from megabert.foundation.errors import DataError
from megabert.foundation.json_files import adapter_of, read_json
from megabert.observability.follower import leaves
from megabert.settings.config.loading import SHIPPED, read_yaml, to_dict
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import RunConfig, is_science

FOLDER = SHIPPED["recipe"][0] / "reference"
HELD_OUT = {
    "eval/mlm_loss": ("held-out masked-LM loss", 1.0, ".3f"),
    "eval/mlm_accuracy": ("accuracy", 100.0, ".1f"),
    "eval/nsp_accuracy": ("next-sentence accuracy", 100.0, ".1f"),
    "eval/rtd_auc": ("discriminator AUC", 1.0, ".3f"),
}
"""Held-out scores that sum up a curve: their names, the factor to the unit that is shown, and the digits."""
SERIES = ("train/mlm_loss", "train/mlm_accuracy", "train/masked_share", *HELD_OUT)
"""The tags of a curve. The share of masked tokens is no score, but tells at once that a run has other masks."""

_PLAIN_PHASE = PhaseConfig(max_seq_length=8, steps=1, global_batch_size=1, learning_rate=1e-9)
"""A phase of defaults; fields without a default have values that no run has."""

Number = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0, le=2**53)]


@dataclass(frozen=True, kw_only=True)
class Published:
    """The result that a recipe's published counterpart reached."""

    result: str
    source: str
    """Paper or repository, with the table."""
    differs: str = ""
    """How the recipe differs from it, if a reader has to know that to compare."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """A logged tag of one phase."""

    steps: Annotated[list[Whole], Field(min_length=1)]
    """Global steps, ascending."""
    values: list[list[Number]]
    """For each seed, a value at each of the steps."""


@dataclass(frozen=True, kw_only=True)
class ReferencePhase:
    """The curves of one phase."""

    max_seq_length: Whole
    tokens_per_step: Number
    held_out_instances: Whole = 0
    """Instances that the held-out scores are means over; 0 if that is not known."""
    series: Annotated[dict[str, Series], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Curves of a recipe, from runs that differ in their seeds alone."""

    recipe: str
    text: str
    """The text that the shards were built from."""
    commands: list[str]
    """What built the shards, and trained the first of the runs."""
    commit: str
    device: str
    seeds: Annotated[list[int], Field(min_length=2)]
    vocab_size: Whole
    data_sha256: list[str]
    """Identity of each phase's shards."""
    config: dict[str, Any]
    """Fields that the result depends on and that are no defaults, by path, without the seed."""
    phases: Annotated[list[ReferencePhase], Field(min_length=1)]


def read_reference(path: Path) -> Reference:
    """Read curves from a file.

    Raises:
        DataError: The file is missing or damaged.
    """
    remedy = "Copy it again, or write it anew: benchmarks/reference_curves.py."
    reference = read_json(path, Reference, remedy=remedy)
    for number, phase in enumerate(reference.phases, 1):
        for tag, series in phase.series.items():
            lengths = {len(values) for values in series.values}
            is_ascending = all(a < b for a, b in zip(series.steps, series.steps[1:], strict=False))
            if len(series.values) != len(reference.seeds) or lengths != {len(series.steps)} or not is_ascending:
                raise DataError(
                    f"{path}: phase {number}, {tag}: {len(series.values)} lists of {sorted(lengths)} values at "
                    f"{len(series.steps)} steps, of {len(reference.seeds)} seeds. {remedy}"
                )
    return reference


def shipped_references(recipe: str) -> list[Reference]:
    """Return the curves that the package ships of a recipe; one for each text."""
    return [read_reference(path) for path in sorted(FOLDER.glob("*.json")) if path.stem.partition("-")[0] == recipe]


def reference_for(config: RunConfig, data_sha256: list[str | None]) -> Reference | None:
    """Return the shipped curves that fit a run best: of its shards, else of its size of vocabulary.

    Args:
        config: Configuration of the run.
        data_sha256: Identity of each phase's shards; None of a phase whose shards are not there.
    """
    fitting = [one for one in shipped_references(config.name) if one.vocab_size == config.model.vocab_size]
    return next((one for one in fitting if one.data_sha256 == data_sha256), next(iter(fitting), None))


def published_results() -> dict[str, Published]:
    """Return the published results by recipe."""
    adapter = adapter_of(dict[str, Published])
    return adapter.validate_python(dict(read_yaml(FOLDER / "published.yaml")))  # type: ignore[no-any-return]


def describe_expected(recipe: str) -> list[str]:
    """Return the known results of a recipe, as lines: published, and measured by us."""
    lines = [f"measured: {describe_end(one)}" for one in shipped_references(recipe)]
    if published := published_results().get(recipe):
        differs = f"; {published.differs}" if published.differs else ""
        lines.insert(0, f"published: {published.result} ({published.source}{differs})")
    return lines


def describe_end(reference: Reference) -> str:
    """Return the last held-out scores of the curves: mean and range over the seeds."""
    parts = []
    for tag, (name, factor, digits) in HELD_OUT.items():
        if tag in reference.phases[-1].series:
            values = [factor * own[-1] for own in reference.phases[-1].series[tag].values]
            unit = "%" if factor == 100 else ""
            shown = (f"{value:{digits}}" for value in (statistics.fmean(values), min(values), max(values)))
            mean, least, most = shown
            parts.append(f"{name} {mean}{unit} ({least} to {most})")
    return f"{', '.join(parts)}: {len(reference.seeds)} seeds on {reference.text}, {reference.device}"


def science_fields(config: RunConfig) -> dict[str, Any]:
    """Return the fields that the result depends on and that are no defaults, by path; the seed is left out.

    A field that a later version adds does not show as a difference to older curves.
    """
    plain = RunConfig(phases=(_PLAIN_PHASE,) * len(config.phases))
    defaults = dict(leaves(to_dict(plain)))
    return {
        path: value
        for path, value in leaves(to_dict(config))
        if is_science(path) and path != "seed" and value != defaults.get(path, ...)
    }
