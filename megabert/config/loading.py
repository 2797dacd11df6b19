"""Building a configuration: defaults < recipe < files < flags, validated whole, every problem reported at once."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from megabert.config.contradictions import check_family, contradictions
from megabert.config.fields import field_table
from megabert.config.phase import PhaseConfig
from megabert.config.run import RunConfig
from megabert.config.yaml_text import parse_yaml
from megabert.errors import ConfigError
from megabert.files import read_small

Config = TypeVar("Config")
TILED_SIZES = (
    "preset",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "embedding_size",
    "num_hidden_groups",
    "max_position_embeddings",
)
"""Fields of the model that are the recipe's where the weights are tiled; all others come from their source."""
EITHER_OR = {
    "steps": "tokens",
    "tokens": "steps",
    "batch_warmup_steps": "batch_warmup_tokens",
    "batch_warmup_tokens": "batch_warmup_steps",
}
"""Fields of a phase of which only one is set, each with the other one."""
MAX_FILE_BYTES = 4 << 20
"""No configuration is longer; a device or a wrong file has no end, or takes minutes to parse."""


class FileValues(dict[str, Any]):
    """What a file of the user's holds, and its path, for errors that are found after layers were merged."""

    path: Path


def build(cls: type[Config], *layers: Mapping[str, Any] | Path) -> Config:
    """Merge layers, later ones winning, and validate the result.

    Args:
        cls: A pydantic dataclass.
        layers: Nested mappings, or paths of YAML files that hold one. A list in a later layer replaces the earlier
            one; a mapping with whole-number keys changes single elements of it (flags: ``--phases.0.steps 100``).

    Returns:
        The validated configuration.

    Raises:
        ConfigError: All problems at once, each with its field, the value found and what is allowed.
    """
    merged: dict[str, Any] = {}
    read = [read_yaml(layer) if isinstance(layer, Path) else layer for layer in layers]
    for layer in read:
        merged = _merge(merged, layer, where="")
    try:
        return TypeAdapter(cls).validate_python(merged)
    except ValidationError as error:
        lines = [
            f"  {_describe(problem, cls)}{_origin(problem['loc'], read)}"
            for problem in _one_for_each_field(_innermost(error.errors()), cls)
        ]
        raise ConfigError("\n".join([f"The configuration has {len(lines)} problem(s):", *lines])) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML (or JSON) file that holds a mapping.

    Raises:
        ConfigError: The file is missing, is no YAML, or holds something else.
    """
    wanted = "a mapping of fields to values"
    return read_mapping(path, parse_yaml, "YAML", wanted=wanted, remedy="Give the path of a YAML file.")


def read_mapping(path: Path, parse: Callable[[str], Any], language: str, *, wanted: str, remedy: str) -> dict[str, Any]:
    """Read a file of the user's that holds a mapping.

    Args:
        path: The file.
        parse: Parser of its text.
        language: What it is written in, for errors.
        wanted: What it should hold, for errors.
        remedy: What the user can do where there is no such file.

    Raises:
        ConfigError: The file is missing, cannot be parsed, or holds something else.
    """
    try:
        parsed = parse(read_small(path, most=MAX_FILE_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). {remedy}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply to be read. {remedy}") from None
    except ValueError as error:  # JSON's errors and those of the encoding, too
        raise ConfigError(f"{path}: is not valid {language}: {error}. Correct it there.") from None
    if not isinstance(parsed, dict):
        kind = "nothing" if parsed is None else f"a {type(parsed).__name__}"
        raise ConfigError(f"{path}: holds {kind}, not {wanted}. {remedy}")
    values = FileValues(parsed)
    values.path = path
    return values


def to_dict(config: Any) -> dict[str, Any]:
    """Return the configuration as plain nested values that YAML and JSON can hold."""
    return TypeAdapter(type(config)).dump_python(config, mode="json")


def to_yaml(config: Any) -> str:
    """Return the configuration as the text of a file that ``build`` reads back equal."""
    return yaml.safe_dump(to_dict(config), sort_keys=False)  # type: ignore[no-any-return]


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return ``{path: (old, new)}`` for every leaf in which two nested mappings differ."""
    different: dict[str, tuple[Any, Any]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        path, a, b = f"{prefix}{key}", old.get(key), new.get(key)
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            a, b = dict(enumerate(a)), dict(enumerate(b))
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            different |= differences(a, b, f"{path}.")
        elif a != b:
            different[path] = (a, b)
    return different


def closest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that a mistyped one is likely to mean; None where none is like it."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return ``; did you mean X?`` for the closest known name, or the list of known names."""
    meant = closest(name, known)
    return f"; did you mean {meant}?" if meant else f"; known are {', '.join(sorted(known))}"


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
        name_or_file: What the user named.

    Raises:
        ConfigError: Neither a name nor a file.
    """
    (folder, suffix), names, path = SHIPPED[kind], shipped_names(kind), Path(name_or_file)
    if name_or_file in names:
        return folder / f"{name_or_file}{suffix}"
    if path.suffix and path.is_file():
        return path
    raise ConfigError(f"--{kind} {name_or_file}: neither a shipped {kind} nor a file{nearest(name_or_file, names)}")


def load_run_config(
    recipe: str,
    files: Sequence[Path] = (),
    flags: Mapping[str, Any] | None = None,
    *,
    kept: Mapping[str, Any] | None = None,
    model_of: Callable[[str], Mapping[str, Any]] | None = None,
) -> RunConfig:
    """Resolve a run: dataclass defaults < recipe < what the run keeps < files in order < flags.

    Args:
        recipe: Name or file.
        files: YAML files that override the recipe.
        flags: Nested fields that override the files.
        kept: Nested fields that a run which has begun keeps, whatever the recipe says by now.
        model_of: Reads the model fields of the source that ``init_from`` names; they come between recipe and files.

    Raises:
        ConfigError: Every problem at once, those of the phases' lengths included.
    """
    layers = [read_yaml(shipped_or_own("recipe", recipe)), kept or {}, *map(read_yaml, files), flags or {}]
    # The source of the weights gives the model's sizes: above the recipe's, below those that files and flags name.
    sources = [layer["init_from"] for layer in layers if layer.get("init_from")]
    is_tiled = bool([False, *(layer["init_tiling"] for layer in layers if "init_tiling" in layer)][-1])
    is_transferred = "transfer" in [layer["init_vocabulary"] for layer in layers if "init_vocabulary" in layer][-1:]
    positions_from = None
    if sources and model_of is not None:
        # `build` says what is wrong with a model that is no mapping.
        models = [found if isinstance(found := layer.get("model"), Mapping) else {} for layer in layers]
        if not is_tiled and any(fields.get("preset") for fields in models[1:]):
            raise ConfigError(
                f"model.preset and init_from={sources[-1]}: the sizes come from there. Leave one of the two out."
            )
        model = model_of(str(sources[-1]))
        check_family(recipe, models, model, str(sources[-1]))
        if is_transferred:  # the shards say it
            model = {name: value for name, value in model.items() if name != "vocab_size"}
        if not is_tiled and not any("max_position_embeddings" in fields for fields in models[1:]):
            positions_from = str(sources[-1])
        kept_sizes = {name: value for name, value in model.items() if name not in TILED_SIZES}
        layers.insert(1, {"model": kept_sizes if is_tiled else {**model, "preset": None}})
    config = build(RunConfig, {"name": Path(recipe).stem}, *layers)
    problems = contradictions(config, positions_from=positions_from)
    if problems:
        what = f"Recipe {recipe}" + (f" from the weights of {sources[-1]}" if sources else "")
        raise ConfigError("\n".join([f"{what} contradicts itself:", *problems]))
    return config


def split_fork(fork: str) -> tuple[Path, int]:
    """Return run folder and step of ``RUN@STEP``.

    Raises:
        ConfigError: It is not of that form.
    """
    run_dir, _, step = fork.rpartition("@")
    if not run_dir or not step.isdecimal():
        raise ConfigError(f"--fork {fork}: allowed is RUN@STEP, for example runs/large@4000.")
    return Path(run_dir), int(step)


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


def _merge(base: Any, update: Any, where: str) -> Any:
    # A flag such as --phases.0.steps changes one element of a list that a recipe has made.
    if isinstance(base, list) and isinstance(update, Mapping):
        result = list(base)
        for key, value in update.items():
            if not str(key).isdecimal() or int(key) >= len(result):
                raise ConfigError(f"{where[:-1]}: there is no element {key!r}; it has {len(result)} (counted from 0).")
            result[int(key)] = _merge(result[int(key)], value, f"{where}{key}.")
        return result
    if isinstance(base, Mapping) and isinstance(update, Mapping):
        # Who names tokens overrides steps that an earlier layer named, and the other way round.
        base = {key: value for key, value in base.items() if EITHER_OR.get(key) not in update or key in update}
        return {**base, **{key: _merge(base.get(key), value, f"{where}{key}.") for key, value in update.items()}}
    return update


def _innermost(problems: list[Any]) -> list[Any]:
    """Drop what pydantic says of a list only because its elements are wrong."""
    paths = [problem["loc"] for problem in problems]
    return [p for p in problems if not any(len(q) > len(p["loc"]) and q[: len(p["loc"])] == p["loc"] for q in paths)]


def _one_for_each_field(problems: list[Any], cls: type) -> list[Any]:
    """Join what pydantic says of each type that a field may have: it calls them ``vocab_size.int`` and the like."""
    fields = {row.path for row in field_table(cls)}
    joined: dict[tuple[Any, ...], Any] = {}
    for problem in problems:
        loc, numbered = problem["loc"], ["N" if isinstance(part, int) else str(part) for part in problem["loc"]]
        end = next((end for end in range(len(loc)) if ".".join(numbered[:end]) in fields), len(loc))
        loc = (*loc[:end], *(part for part in loc[end:] if isinstance(part, int)))
        if loc in joined:
            joined[loc]["msg"] += f" or {problem['msg'].removeprefix('Input should be ')}"
        else:
            joined[loc] = {**problem, "loc": loc}
    return list(joined.values())


def _origin(loc: Sequence[Any], layers: Sequence[Mapping[str, Any]]) -> str:
    """Return the file that a field's value comes from, as the end of a line; nothing for flags and defaults."""
    for layer in reversed(layers):
        inner: Any = layer
        try:
            for part in loc:
                inner = inner[part]
        except (LookupError, TypeError):
            continue
        return f", in {layer.path}" if isinstance(layer, FileValues) else ""
    return ""


def _describe(problem: Any, cls: type) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        section, _, name = path.rpartition(".")
        known = [row.path for row in field_table(cls)]
        # Suggest from the fields of the same section; in the table an element of a list is numbered N.
        prefix = "".join(f"{'N' if part.isdecimal() else part}." for part in section.split(".") if part)
        names = sorted({row[len(prefix) :].split(".")[0] for row in known if row.startswith(prefix)})
        others = "" if section else " (flags that are no fields, such as --run-dir, are in --help)"
        return f"{path}: unknown field{nearest(name, names)}{others}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "tuple_type":
        message = f"is a list; write it in brackets, [{problem['input']}]"
    value = "" if problem["type"] == "missing" else f" (found {problem['input']!r})"
    return f"{path}: {message}{value if len(value) < 200 else ''}"
