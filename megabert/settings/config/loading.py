"""Building a configuration: defaults < recipe < files < flags, validated whole, every problem reported at once."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from megabert.foundation.cached_folders import cached_folder
from megabert.foundation.errors import ConfigError
from megabert.foundation.files import read_small
from megabert.foundation.json_files import adapter_of, to_json
from megabert.foundation.remote_files import is_url
from megabert.settings.config import problems
from megabert.settings.config.names import did_you_mean
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import UNCLIPPED, RunConfig
from megabert.settings.config.yaml_text import parse_yaml, write_yaml

Config = TypeVar("Config")
TILED_SIZES = (
    *("preset", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("embedding_size", "num_hidden_groups", "max_position_embeddings", "generator_layers"),
)
"""Fields of the model that are the recipe's where the weights are tiled; all others come from their source."""
_ALTERNATIVES = (
    ("steps", "tokens"),
    ("batch_warmup_steps", "batch_warmup_tokens"),
    ("path", "sources"),
    ("mixture", "temperature"),
)
OVERRIDES = {"decay_power": "decay", **dict(_ALTERNATIVES), **{other: name for name, other in _ALTERNATIVES}}
"""Fields of a phase or of the data that a layer takes from the layers before it by naming the other one with another
value."""
MAX_FILE_BYTES = 4 << 20
"""No configuration is longer; a device or a wrong file has no end, or takes minutes to parse."""


def merge_layers(cls: type[Config], *layers: Mapping[str, Any] | Path | str) -> Config:
    """Merge layers, later ones winning, and validate the result.

    Types are strict: a number is no text, true is no number, and no text is empty.

    Args:
        cls: A pydantic dataclass.
        layers: Nested mappings, or paths of YAML files that hold one. A list in a later layer replaces the earlier
            one; a mapping with whole-number keys changes single elements of it (flags: ``--phases.0.steps 100``).

    Returns:
        The validated configuration.

    Raises:
        ConfigError: All problems at once, each with its field, the value found and the allowed values.
    """
    read = [read_yaml(Path(layer)) if isinstance(layer, Path | str) else layer for layer in layers]
    merged: Any = {}
    for layer in read:
        merged = _merge(merged, layer, where="")
    lines = list(problems.unfit_values(merged))
    try:
        # As JSON, since strict types take a list for a tuple, and a mapping for a dataclass, out of JSON alone.
        if not lines:
            config: Config = adapter_of(cls).validate_json(json.dumps(merged, default=problems.to_plain), strict=True)  # type: ignore[arg-type]
            return config
    except ValidationError as error:
        lines = problems.describe_problems(error.errors(), cls, read)
    raise ConfigError("\n".join([f"The configuration has {len(lines)} problem(s):", *lines]))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML (or JSON) file that holds a mapping.

    Raises:
        ConfigError: The file is missing, is no YAML, or holds something else.
    """
    return read_mapping(path, parse_yaml, "YAML", remedy="Give the path of a YAML file.")


def read_mapping(path: Path, parse: Callable[[str], Any], language: str, *, remedy: str) -> problems.FileValues:
    """Read a file of the user's that holds a mapping.

    Args:
        path: The file.
        parse: Parser of its text.
        language: Language of the file, for errors.
        remedy: Advice to a user who has no such file.

    Raises:
        ConfigError: The file is missing, cannot be parsed, or holds something else.
    """
    try:
        parsed = parse(read_small(path, most=MAX_FILE_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). {remedy}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply to be read. {remedy}") from None
    except ValueError as error:  # errors of JSON and of the encoding, too
        raise ConfigError(f"{path}: is not valid {language}: {error}. Correct it there.") from None
    if not isinstance(parsed, dict):
        kind = "nothing" if parsed is None else f"a {type(parsed).__name__}"
        raise ConfigError(f"{path}: holds {kind}, not a mapping of fields to values. {remedy}")
    return problems.FileValues(parsed, path)


to_dict = to_json
"""Returns a configuration as plain nested values that YAML and JSON can hold."""


def to_yaml(config: Any) -> str:
    """Return the configuration as the text of a file that `merge_layers` reads back equal."""
    return write_yaml(to_dict(config))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return ``{path: (old, new)}`` for every leaf in which two nested mappings differ."""
    different: dict[str, tuple[Any, Any]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        path, a, b = f"{prefix}{key}", old.get(key), new.get(key)
        # Lists are compared element by element, unless they are of values alone, and of different lengths.
        if isinstance(a, list) and isinstance(b, list):
            has_sections = all(isinstance(value, Mapping) for value in [*a, *b])
            if has_sections or len(a) == len(b):
                a, b = dict(enumerate(a)), dict(enumerate(b))
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            different |= differences(a, b, f"{path}.")
        elif a != b:
            different[path] = (a, b)
    return different


SHIPPED = {
    "recipe": (Path(str(resources.files("megabert"))) / "recipes", ".yaml"),
    "engine": (Path(str(resources.files("ds_configs"))), ".json"),
}
"""Folder and suffix of the recipes, and of the DeepSpeed configurations, that the package ships."""


def shipped_names(kind: str) -> list[str]:
    """Return the names of the recipes, or of the engine files, that the package ships."""
    folder, suffix = SHIPPED[kind]
    return sorted(path.stem for path in folder.glob(f"*{suffix}"))


def shipped_or_own(kind: str, name_or_file: str) -> Path:
    """Return a shipped file by its name, or the user's own.

    Args:
        kind: ``recipe`` or ``engine``.
        name_or_file: Name or path that the user gave.

    Raises:
        ConfigError: Neither a name nor a file.
    """
    (folder, suffix), names, path = SHIPPED[kind], shipped_names(kind), Path(name_or_file)
    if name_or_file in names:
        return folder / f"{name_or_file}{suffix}"
    if path.suffix and path.is_file():
        return path
    raise ConfigError(f"{kind} {name_or_file}: neither a shipped {kind} nor a file{did_you_mean(name_or_file, names)}")


def load_run_config(
    recipe: str,
    files: Sequence[Path] = (),
    flags: Mapping[str, Any] | None = None,
    *,
    model_of: Callable[[str], Mapping[str, Any]] | None = None,
) -> RunConfig:
    """Resolve a run: defaults < recipe < sizes of the initial weights < files in order < flags.

    Args:
        recipe: Name or file.
        files: YAML files that override the recipe.
        flags: Nested fields that override the files.
        model_of: Reads the model fields of the source that ``init_from`` names.

    Raises:
        ConfigError: Every problem at once, the phases' lengths included.
    """
    own = read_yaml(shipped_or_own("recipe", recipe))
    overrides = [*map(read_yaml, files), flags or {}]
    source = last_said([own, *overrides], "init_from")
    sizes = {} if source is None or model_of is None else model_of(str(source))
    layers = [
        {"name": Path(recipe).stem},  # the recipe's file names it, unless it has a name of its own
        own,
        # The weights give the sizes: not the recipe, but what files and flags say of them stands, and is checked.
        {"model": _sizes_of_source(recipe, own, overrides, sizes)} if sizes else {},
        *overrides,
    ]
    config = merge_layers(RunConfig, *layers)
    says_positions = any("max_position_embeddings" in _model_in(layer) for layer in overrides)
    has_positions_of_source = bool(sizes) and not config.init_tiling and not says_positions
    lines = list(problems.contradictions(config, positions_from=str(source) if has_positions_of_source else None))
    if lines:
        what = f"Recipe {recipe}" + (f" from the weights of {source}" if source is not None else "")
        raise ConfigError("\n  ".join([f"{what} contradicts itself:", *lines]))
    return config


def last_said(layers: Sequence[Mapping[str, Any]], field: str, default: Any = None) -> Any:
    """Return the value of a field in the last of the layers that name it."""
    return next((layer[field] for layer in reversed(layers) if field in layer), default)


def _model_in(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the model's fields in a layer; `merge_layers` refuses a model that is no mapping."""
    model = layer.get("model")
    return model if isinstance(model, Mapping) else {}


def _sizes_of_source(
    recipe: str, own: Mapping[str, Any], overrides: Sequence[Mapping[str, Any]], source: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the model fields that come from the source of the weights.

    Args:
        recipe: Its name, for errors.
        own: The recipe.
        overrides: The layers above it.
        source: The source's model fields.

    Raises:
        ConfigError: The source is of another family than the run, or sizes are asked for by a preset as well.
    """
    layers = [own, *overrides]
    init_from, is_tiled = last_said(layers, "init_from"), last_said(layers, "init_tiling", default=False)
    problems.check_family(recipe, [_model_in(layer) for layer in layers], source, str(init_from))
    if not is_tiled and any(_model_in(layer).get("preset") for layer in overrides):
        raise ConfigError(
            f"model.preset and init_from={init_from}: the sizes come from there. Leave one of the two out."
        )
    not_taken = TILED_SIZES if is_tiled else ()
    if last_said(layers, "init_vocabulary") == "transfer":
        not_taken = (*not_taken, "vocab_size")  # the shards say it
    sizes = {name: value for name, value in source.items() if name not in not_taken}
    return sizes if is_tiled else {**sizes, "preset": None}


def split_checkpoint(name: str) -> tuple[str, str]:
    """Return folder and checkpoint of ``RUN@STEP``, ``RUN@best``; without a checkpoint it is ``last``."""
    folder, _, checkpoint = name.rpartition("@")
    return (folder, checkpoint) if folder else (name, "last")


def split_fork(fork: str) -> tuple[Path, int]:
    """Return run folder and step of ``RUN@STEP``.

    Raises:
        ConfigError: It is not of that form.
    """
    run_dir, step = split_checkpoint(fork)
    if not re.fullmatch("[0-9]{1,15}", step):
        raise ConfigError(f"--fork {fork}: allowed is RUN@STEP, for example runs/large@4000.")
    return Path(run_dir), int(step)


def phase_name(config: RunConfig, index: int) -> str:
    """Return the phase's name, ``phase1`` and so on for phases without one."""
    return config.phases[index].name or f"phase{index + 1}"


def phase_data(config: RunConfig, phase: PhaseConfig) -> dict[str, Path]:
    """Return the folders of the instance shards that the phase reads, by source and sorted; a single one has no name.

    The folder of a URL is one of ``data.cache``, with its manifest and tokenizer; its shards come when they are read,
    or all together by ``foundation.cached_folders.fetch_files``.

    Raises:
        ConfigError: Neither ``phases[i].data`` nor ``data.path`` nor ``data.sources`` is set, or a URL cannot be used.
        DataError: The files of a URL cannot be read.
    """
    if phase.data is not None:
        return {"": _folder(config, phase.data)}
    builds = builds_read(config, phase)
    if not builds:
        raise ConfigError(
            "No data: set --data.path to the folder of a 'megabert-data build', data.sources to several, or "
            "phases.N.data to a folder of instance shards. To make one: megabert-data build --input FILE --output DIR",
            see="there-are-no-shards",
        )
    inside = f"instances/{phase.max_seq_length}"
    return {name: _folder(config, f"{build.rstrip('/')}/{inside}") for name, build in sorted(builds.items())}


def builds_read(config: RunConfig, phase: PhaseConfig) -> dict[str, str]:
    """Return the builds whose shards the phase reads, by source; ``data.path`` has no name."""
    if phase.data is not None:
        return {}
    builds = config.data.sources or ({} if config.data.path is None else {"": config.data.path})
    return {name: build for name, build in builds.items() if phase.mixture is None or phase.mixture.get(name)}


def _folder(config: RunConfig, place: str) -> Path:
    data = config.data
    return cached_folder(place.rstrip("/"), str(data.cache), data.cache_limit) if is_url(place) else Path(place)


def build_fields(config: RunConfig) -> dict[str, Any]:
    """Return the fields of a build that makes the shards of a run: those that it states, and the phases' lengths."""
    stated = {name: value for name, value in to_dict(config.shards).items() if value is not None}
    return {"lengths": sorted({phase.max_seq_length for phase in config.phases}), **stated}


def _merge(base: Any, update: Any, where: str) -> Any:
    # A flag such as --phases.0.steps changes one element of a list that a recipe has made.
    if isinstance(base, list) and isinstance(update, Mapping):
        result = list(base)
        for key, value in update.items():
            if not re.fullmatch("[0-9]{1,9}", str(key)) or int(key) >= len(result):
                raise ConfigError(f"{where[:-1]}: there is no element {key!r}; it has {len(result)} (counted from 0).")
            result[int(key)] = _merge(result[int(key)], value, f"{where}{key}.")
        return result
    if isinstance(base, Mapping) and isinstance(update, Mapping):
        # A layer that names tokens overrides steps that an earlier layer named, and so on. Compared as texts: a caller
        # from Python may give anything, such as an array.
        said = {key: (str(update[other]), str(base.get(other))) for key, other in OVERRIDES.items() if other in update}
        gone = {key for key, (ours, before) in said.items() if ours != before}
        names = [layer.get("name", base.get("name")) for layer in (base, update)]
        if where == "optimizer." and _clips(names[0]) != _clips(names[1]) and not update.get("clip_both"):
            gone |= {"max_grad_norm", "clip_both"}  # whether to clip goes with the optimizer
        if where == "optimizer." and names[0] != names[1]:
            gone |= {"options", "package"}
        base = {key: value for key, value in base.items() if key not in gone}
        return {**base, **{key: _merge(base.get(key), value, f"{where}{key}.") for key, value in update.items()}}
    return update


def _clips(optimizer: object) -> bool:
    return optimizer not in tuple(UNCLIPPED)
