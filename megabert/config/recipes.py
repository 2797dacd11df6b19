"""Recipes by name or file, and the run configuration that they resolve to."""

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from megabert.config.loading import build, nearest, read_yaml
from megabert.config.run import PhaseConfig, RunConfig
from megabert.errors import ConfigError

RECIPES = Path(str(resources.files("megabert"))) / "recipes"
ENGINES = Path(str(resources.files("ds_configs")))
"""Folders of the recipes and of the DeepSpeed configurations that the package ships."""


def recipe_names() -> list[str]:
    """Return the names of the recipes that the package ships."""
    return _names(RECIPES, ".yaml")


def engine_names() -> list[str]:
    """Return the names of the DeepSpeed configurations that the package ships."""
    return _names(ENGINES, ".json")


def recipe_path(name_or_file: str) -> Path:
    """Return the file of a shipped recipe or of the user's own.

    Raises:
        ConfigError: Neither a name nor a file.
    """
    return _named_or_file(name_or_file, "recipe", RECIPES, ".yaml")


def engine_path(name_or_file: str) -> Path:
    """Return the file of a shipped DeepSpeed configuration or of the user's own.

    Raises:
        ConfigError: Neither a name nor a file.
    """
    return _named_or_file(name_or_file, "engine", ENGINES, ".json")


ModelOf = Callable[[str], Mapping[str, Any]]
"""Returns the model fields of the source that ``init_from`` names."""


def load_run_config(
    recipe: str,
    files: Sequence[Path] = (),
    flags: Mapping[str, Any] | None = None,
    *,
    model_of: ModelOf | None = None,
) -> RunConfig:
    """Resolve a run: dataclass defaults < recipe < files in order < flags.

    Args:
        recipe: Name or file.
        files: YAML files that override the recipe.
        flags: Nested fields that override the files.
        model_of: Reads the model fields of the source that ``init_from`` names; they come between recipe and files.

    Raises:
        ConfigError: Every problem at once, those of the phases' lengths included.
    """
    layers = [read_yaml(recipe_path(recipe)), *map(read_yaml, files), flags or {}]
    sources = [layer["init_from"] for layer in layers if layer.get("init_from")]
    if sources and model_of is not None:
        if any((layer.get("model") or {}).get("preset") for layer in layers[1:]):
            raise ConfigError(
                f"model.preset and init_from={sources[-1]}: the sizes come from there. Leave one of the two out."
            )
        model = model_of(str(sources[-1]))
        _check_family(recipe, [layer.get("model") or {} for layer in layers], model, str(sources[-1]))
        layers.insert(1, {"model": {**model, "preset": None}})
    config = build(RunConfig, {"name": Path(recipe).stem}, *layers)
    problems = []
    for i, phase in enumerate(config.phases):
        limit = config.model.max_position_embeddings
        if phase.max_seq_length > limit:
            problems.append(
                f"  phases[{i}].max_seq_length={phase.max_seq_length} is above model.max_position_embeddings={limit}. "
                f"Build shards of length {limit} or less, or raise model.max_position_embeddings."
            )
        tokens = config.micro_batch_tokens
        if tokens != "auto" and tokens < phase.max_seq_length:
            problems.append(
                f"  micro_batch_tokens={tokens} is below phases[{i}].max_seq_length={phase.max_seq_length}: "
                f"one instance would not fit. Raise it to {phase.max_seq_length} or more."
            )
    if problems:
        raise ConfigError("\n".join([f"Recipe {recipe} contradicts itself:", *problems]))
    return config


def split_fork(fork: str) -> tuple[Path, int]:
    """Return run folder and step of ``RUN@STEP``.

    Raises:
        ConfigError: It is not of that form.
    """
    run_dir, _, step = fork.rpartition("@")
    if not run_dir or not step.isdigit():
        raise ConfigError(f"--fork {fork}: allowed is RUN@STEP, for example runs/large@4000.")
    return Path(run_dir), int(step)


def _check_family(recipe: str, layers: Sequence[Mapping[str, Any]], model: Mapping[str, Any], source: str) -> None:
    """Refuse a source of another family than the one that recipe and flags ask for."""
    wanted = [layer["family"] for layer in layers if layer.get("family")]
    family, given = (wanted or ["bert"])[-1], model.get("family", "bert")
    if family != given:
        raise ConfigError(
            f"init_from={source}: its model is of the family {given}, recipe {recipe} trains {family}. Take a recipe "
            f"of that family, or add --model.family {given}."
        )


def phase_name(config: RunConfig, index: int) -> str:
    """Return the phase's name, ``phase1`` and so on where it has none."""
    return config.phases[index].name or f"phase{index + 1}"


def phase_data(config: RunConfig, phase: PhaseConfig) -> Path:
    """Return the folder of the phase's instance shards.

    Raises:
        ConfigError: Neither ``phases[i].data`` nor ``data.path`` is set.
    """
    if phase.data is not None:
        return Path(phase.data)
    if config.data.path is None:
        raise ConfigError(
            "No data: set --data.path to the folder of a 'megabert-data build', or phases.N.data to a folder of "
            "instance shards. To make one: megabert-data build --input FILE --output DIR",
            see="there-are-no-shards",
        )
    return Path(config.data.path) / "instances" / str(phase.max_seq_length)


def _names(folder: Path, suffix: str) -> list[str]:
    return sorted(path.stem for path in folder.glob(f"*{suffix}"))


def _named_or_file(name_or_file: str, kind: str, folder: Path, suffix: str) -> Path:
    names = _names(folder, suffix)
    if name_or_file in names:
        return folder / f"{name_or_file}{suffix}"
    path = Path(name_or_file)
    if path.suffix and path.is_file():
        return path
    raise ConfigError(f"--{kind} {name_or_file}: neither a shipped {kind} nor a file{nearest(name_or_file, names)}")
