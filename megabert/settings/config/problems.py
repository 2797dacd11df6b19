"""Faults of a configuration in words: wrong values, and contradictions between parts that no part can check itself."""

import re
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from megabert.foundation.errors import ConfigError
from megabert.foundation.remote_files import find_secret, is_url
from megabert.settings.config.fields import field_table, pattern_of
from megabert.settings.config.names import closest, did_you_mean, named_elsewhere
from megabert.settings.config.run import RunConfig
from megabert.settings.config.shards import PER_LENGTH


class FileValues(dict[str, Any]):
    """The values of a user's file, and its path, for errors that are found after layers were merged."""

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        super().__init__(values)
        self.path = path


def describe_problems(errors: Sequence[Any], cls: type, layers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each field that is wrong.

    Args:
        errors: What pydantic says of the merged layers.
        cls: The configuration, a pydantic dataclass.
        layers: The layers, of which a later one wins.
    """
    return [
        # A missing field has no place of its own: the place of its section is named.
        f"  {_describe(problem, cls)}{_origin(problem['loc'][: -1 if problem['type'] == 'missing' else None], layers)}"
        for problem in _one_for_each_field(_innermost(errors), cls)
    ]


def to_plain(value: Any) -> Any:
    """Return a path as a text, a number of numpy or torch as one of Python, and another value as it is."""
    if isinstance(value, PathLike):
        return str(value)
    return value.item() if getattr(value, "shape", None) == () else value


def unfit_values(values: Any, where: str = "") -> Iterator[str]:
    """Yield a line for each value that no file could hold: a text that is no UTF-8 or has a NUL, and other objects."""
    values = to_plain(values)
    if isinstance(values, str) and re.search("[\0\ud800-\udfff]", values):
        yield f"  {where[:-1]}: has a character that is no text (found {ascii(values)[:100]}); leave it out"
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from (*unfit_values(key, where), *unfit_values(value, f"{where}{key}."))
    elif isinstance(values, list | tuple):
        for index, value in enumerate(values):
            yield from unfit_values(value, f"{where}{index}.")
    elif not isinstance(values, str | int | float | None):
        kind = type(values).__name__
        yield f"  {where[:-1]}: is no number, text, list or mapping (found {ascii(values)[:100]}, a {kind}); give one"


def _innermost(problems: Sequence[Any]) -> list[Any]:
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
            for part in loc:  # a flag names an element of a list by a key: --phases.0.steps
                inner = inner[str(part) if isinstance(inner, Mapping) else part]
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
        prefix = f"{pattern_of(section)}." if section else ""
        names = sorted({row[len(prefix) :].split(".")[0] for row in known if row.startswith(prefix)})
        others = "" if section else " (flags that are no fields, such as --run-dir, are in --help)"
        # A name like none of these may be one of another section: learning_rate is a phase's.
        elsewhere = {row.rpartition(".")[2]: row.replace(".N.", ".0.") for row in reversed(known)}
        anywhere = [row.replace(".N.", ".0.") for row in known]
        # A name of other programs counts before letters that are alike, in another section as well.
        fields = [each for each in names if f"{prefix}{each}" in known]
        meant = named_elsewhere(name, fields) or named_elsewhere(name, anywhere) or closest(name, names)
        meant = meant or elsewhere.get(closest(name, list(elsewhere)) or "")
        hint = f"; did you mean {meant}?" if meant else did_you_mean(name, names)
        return f"{path}: unknown field{hint}{others}"
    message = problem["msg"].removeprefix("Value error, ")
    if not path:  # a rule of the whole, which names its fields
        return message
    if problem["type"] == "missing":
        return f"{path}: is missing; set it (as a flag: --{path.replace('_', '-')})"
    if problem["type"] == "tuple_type":
        message = f"is a list; write it in brackets, [{problem['input']}]"
    found = f" (found {problem['input']!r})"
    remedy = "; write text in quotes" if problem["type"] == "string_type" else ""
    return f"{path}: {message}{found if len(found) < 200 else ''}{remedy}"


def contradictions(config: RunConfig, *, positions_from: str | None = None) -> Iterator[str]:
    """Yield each contradiction between sections.

    Args:
        config: The whole run.
        positions_from: Source of weights that ``model.max_position_embeddings`` comes from, if any.
    """
    yield from _unfit_urls(config)
    has_source = config.init_from is not None or config.fork is not None
    if config.init_tiling and not has_source:
        yield "init_tiling: there is nothing to tile; set init_from to a smaller model, or leave it out."
    if config.init_vocabulary == "transfer" and not has_source:
        remedy = "set init_from to a model, or leave it out"
        yield f"init_vocabulary=transfer: there is nothing to transfer; {remedy}."
    if config.ops.lamb == "apex" and config.optimizer.name == "stable_adamw":
        yield "ops.lamb=apex goes with optimizer.name=lamb, not stable_adamw: set ops.lamb to auto."
    if config.validation.weights == "average" and config.average.decay is None:
        remedy = "set average.decay, such as 0.999, or take validation.weights trained"
        yield f"validation.weights=average, but no average is kept: {remedy}."
    lengths = sorted({phase.max_seq_length for phase in config.phases})
    for name in PER_LENGTH:
        numbers = getattr(config.shards, name)
        if numbers is not None and len(numbers) != len(lengths):
            yield f"shards.{name}={list(numbers)}: give one number for each length of the phases, {lengths}."
    tokens, model = config.micro_batch_tokens, config.model
    for i, phase in enumerate(config.phases):
        yield from _unknown_sources(i, config)
        length, base = f"phases[{i}].max_seq_length={phase.max_seq_length}", phase.global_rope_theta
        if phase.max_seq_length > model.max_position_embeddings:
            yield f"{length} is above {_describe_positions(i, config, positions_from)}"
        if base is not None and not model.traits.is_pre_norm:
            other = f"{model.family}, which has no rotary positions. Leave it out."
            yield f"phases[{i}].global_rope_theta={base:g} goes with model.family=modernbert, not {other}"
        if not phase.replaced_tokens and model.generator_size != 1:
            fields = f"phases[{i}].replaced_tokens=false with model.generator_size={model.generator_size}"
            way = "Set the size to 1, or leave" if model.traits.has_discriminator else "Leave"
            why = "the discriminator would use the generator's head, and has to be as wide"
            yield f"{fields}: {why}. {way} replaced_tokens out."
        if phase.masked_lm_weight != "equal" and model.traits.has_discriminator:
            why = f"applies to a masked LM that is kept, and the generator of {model.family} is thrown away"
            yield f"phases[{i}].masked_lm_weight={phase.masked_lm_weight} {why}. Leave it out, or take another family."
        if phase.new_positions == "tile" and (obstacle := _obstacle_to_tiling(i, config)):
            yield f"phases[{i}].new_positions=tile {obstacle}. Leave it out, or set it to keep."
        if phase.position_offset == "random" and (obstacle := _obstacle_to_offsets(i, config)):
            yield f"phases[{i}].position_offset=random {obstacle}. Leave it out, or set it to none."
        if tokens != "auto" and tokens < phase.max_seq_length:
            remedy = f"one instance would not fit. Raise it to {phase.max_seq_length} or more."
            yield f"micro_batch_tokens={tokens} is below {length}: {remedy}"


def _unknown_sources(index: int, config: RunConfig) -> Iterator[str]:
    """Yield the contradictions between the shares of a phase and the sources of the data."""
    phase, sources = config.phases[index], config.data.sources or {}
    name = next((name for name in ("mixture", "temperature") if getattr(phase, name) is not None), None)
    if name is not None and (phase.data is not None or not sources):
        shown = f"phases[{index}].{name}={getattr(phase, name)}"
        yield f"{shown} is about data.sources, and this phase reads no sources. Name them, or leave {name} out."
    elif phase.mixture is not None and phase.mixture.keys() != sources.keys():
        wrong = ", ".join(sorted(phase.mixture.keys() ^ sources.keys()))
        names = f"names {', '.join(sorted(phase.mixture))}, and data.sources {', '.join(sorted(sources))}"
        yield f"phases[{index}].mixture {names}: {wrong} is in one alone. Give each source a share; 0 leaves it out."


def _obstacle_to_tiling(index: int, config: RunConfig) -> str | None:
    """Return why a phase cannot begin with repeated rows of the position table, or None if it can."""
    length, longest = config.phases[index].max_seq_length, config.longest_before(index)
    if not config.model.position_biased_input:
        return f"fills rows of a table of positions, {_without_table(config)}"
    if index == 0:
        return "repeats the rows that earlier phases have trained, and this phase is the first one"
    if any(phase.position_offset == "random" for phase in config.phases[:index]):
        return "would overwrite rows that an earlier phase has trained by its position_offset=random"
    if length <= longest:
        return f"finds no new row: max_seq_length={length} is not above {longest}, the longest of the phases before"
    return None


def _obstacle_to_offsets(index: int, config: RunConfig) -> str | None:
    """Return why the positions of a phase cannot be shifted, or None if they can."""
    length, model = config.phases[index].max_seq_length, config.model
    if not model.position_biased_input:
        return f"shifts positions in a table, {_without_table(config)}"
    if length == model.max_position_embeddings:
        return f"has no room: max_seq_length={length} is model.max_position_embeddings"
    return None


def _without_table(config: RunConfig) -> str:
    return f"and model.family={config.model.family} has none here"


def _describe_positions(index: int, config: RunConfig, source: str | None) -> str:
    """Return the limit that a phase's length is above, and the remedy; a source may set it instead of the recipe."""
    limit = config.model.max_position_embeddings
    build = f"Build shards of length {limit} or less"
    if source is None:
        return f"model.max_position_embeddings={limit}. {build}, or raise model.max_position_embeddings."
    positions = f"the {limit} positions of init_from={source}. {build} and set --phases.{index}.max-seq-length {limit}"
    if not config.model.traits.is_pre_norm:
        return f"{positions}, or take weights with more positions."
    longest = max(phase.max_seq_length for phase in config.phases)
    return f"{positions}, or add --model.max-position-embeddings {longest}: rotary positions have no weights."


def check_family(recipe: str, layers: Sequence[Mapping[str, Any]], model: Mapping[str, Any], source: str) -> None:
    """Refuse a source of another family than the one that recipe and flags ask for."""
    wanted = [layer["family"] for layer in layers if layer.get("family")]
    family, given = (wanted or ["bert"])[-1], model.get("family", "bert")
    if family != given:
        raise ConfigError(
            f"init_from={source}: its model is of the family {given}, recipe {recipe} trains {family}. Take a recipe "
            f"of that family, or add --model.family {given}."
        )


def _unfit_urls(config: RunConfig) -> Iterator[str]:
    """Yield each URL that would record a secret, or has no cache to go to."""
    places = {"data.path": config.data.path}
    places |= {f"data.sources.{name}": place for name, place in (config.data.sources or {}).items()}
    places |= {f"phases.{index}.data": phase.data for index, phase in enumerate(config.phases)}
    urls = {field: place for field, place in places.items() if place is not None and is_url(place)}
    for field, url in urls.items():
        if secret := find_secret(url):
            yield (
                f"{field}={url}: has {secret}, which the run would record. Leave it out: the protocol's library finds "
                "credentials in its own places (~/.aws, ~/.netrc, the environment)."
            )
    if urls and config.data.cache is None:
        field = next(iter(urls))
        yield f"{field}={urls[field]}: is a URL, whose files need a folder; set data.cache to one on each node."
    if config.data.cache_limit is not None and config.data.cache is None:
        yield f"data.cache_limit={config.data.cache_limit:g}: there is no cache; set data.cache, or leave it out."
