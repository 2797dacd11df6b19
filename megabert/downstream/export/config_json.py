"""``config.json`` to and from our ``ModelConfig``.

`megabert.downstream.export.config_fields` has a table of all fields for each family.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

import megabert
from megabert.downstream.export.config_fields import CONFIG_FIELDS, DERIVED, Entry, Fixed, Taken
from megabert.downstream.export.model_folder import GOOGLE_CONFIG, config_path
from megabert.foundation.errors import ConfigError
from megabert.foundation.json_files import read_json
from megabert.models.convert import unused_positions
from megabert.settings.config.families import FAMILIES, Objective
from megabert.settings.config.loading import merge_layers
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.names import closest
from megabert.tokens.tokenization import SpecialIds

OURS = "megabert_version"
"""Key in config.json that marks a folder as an export of this package."""
OUR_FAMILY = "megabert_family"
"""Key in config.json of a family that ``transformers`` has as another one."""

GENERATOR_FOLDER = "generator"
"""Folder of a generator, inside the discriminator's and in the same form."""

HIDDEN_ACTS = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}
"""Our ``hidden_act`` by theirs; the last two are the same function."""


@dataclass(frozen=True, kw_only=True)
class _Typed:
    """Types of fields that are read here; ``ModelConfig`` checks the types of its own fields."""

    model_type: str | None = None
    megabert_family: str | None = None
    hidden_act: str | None = None
    hidden_activation: str | None = None
    layer_types: tuple[str, ...] | None = None
    rope_parameters: dict[str, dict[str, Any] | None] | None = None
    architectures: tuple[str, ...] | None = None
    pad_token_id: Annotated[int, Field(ge=0, le=1 << 24)] | None = None
    pos_att_type: str | tuple[str, ...] | None = None
    id2label: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], str | int | float | bool | None] | None = None
    label2id: dict[str, int | str | None] | None = None
    sbert_ce_default_activation_function: str | None = None
    sentence_transformers: dict[str, str | None] | None = None
    problem_type: str | None = None
    megabert_task: dict[str, Any] | None = None


FULL, SLIDING = "full_attention", "sliding_attention"
"""How transformers calls a ModernBERT's layers with global and with local attention."""
ROPE_PARAMETERS = {"rope_type": "default", "type": "default", "partial_rotary_factor": 1.0}
"""Parameters that rotary positions may have besides their base, and the only value of each."""


ARCHITECTURES: dict[str, Mapping[Objective | Literal["rtd"], str]] = {
    "bert": {"nsp": "BertForPreTraining", "sop": "BertForPreTraining", "none": "BertForMaskedLM"},
    "roberta": {"none": "RobertaForMaskedLM"},
    "albert": {"sop": "AlbertForPreTraining", "none": "AlbertForMaskedLM"},
    "electra": {"rtd": "ElectraForPreTraining", "none": "ElectraForMaskedLM"},
    "deberta": {"none": "DebertaForMaskedLM"},
    "deberta-v2": {"none": "DebertaV2ForMaskedLM"},
    "deberta-v3": {"rtd": "DebertaV2Model", "none": "DebertaV2ForMaskedLM"},
    "modernbert": {"none": "ModernBertForMaskedLM"},
}
"""The class of ``transformers`` that has all weights of a model, by family and objective; ``rtd`` is a discriminator,
which DeBERTa's classes have without its head."""

SPECIAL_IDS = {"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"}
"""Names in config.json of ids of special pieces, and their roles."""
MODERNBERT_IDS = {"cls_token_id": "cls", "sep_token_id": "sep"}
"""Further names that a ModernBERT has."""
_GENERATOR = "num_attention_heads intermediate_size hidden_act layer_norm_eps max_position_embeddings"
GENERATOR_FIELDS = tuple(_GENERATOR.split())
"""Fields of a generator that follow from its discriminator's, whatever its width and depth."""


def config_json(config: ModelConfig, *, architecture: str, special_ids: SpecialIds, is_tied: bool) -> dict[str, Any]:
    """Return the content of ``config.json``.

    Args:
        config: Sizes and family; ``vocab_size`` must be a number.
        architecture: Class of ``transformers`` that has all exported weights.
        special_ids: Special tokens of the tokenizer.
        is_tied: Whether the decoder of the masked-LM head is the word embeddings. transformers would put these in place
            of a decoder of its own if the file did not say so.
    """
    table, roles = CONFIG_FIELDS[config.family], SPECIAL_IDS
    if config.family == "modernbert":
        roles = {**SPECIAL_IDS, **MODERNBERT_IDS}
    theirs = {entry.ours or name: (name, entry) for name, entry in table.items() if isinstance(entry, Taken)}
    shape = {f.name: config.stated(f.name) for f in fields(config) if f.name in theirs}
    shape["max_position_embeddings"] += unused_positions(config, special_ids.pad)
    for name, value in shape.items():
        if value is None:
            shape[name] = theirs[name][1].none_is[0]
    return {
        "architectures": [architecture],
        "model_type": config.model_type,
        **({OUR_FAMILY: config.family} if config.model_type != config.family else {}),
        **{name: entry.value for name, entry in table.items() if isinstance(entry, Fixed) and entry.is_written},
        **{theirs[name][0]: value for name, value in shape.items()},
        **{name: getattr(special_ids, role) for name, role in roles.items()},
        "tie_word_embeddings": is_tied,
        "torch_dtype": "float32",
        OURS: megabert.__version__,
    }


def read_config_json(folder: Path) -> ModelConfig:
    """Read family and sizes of a model; the generator of a discriminator has a folder of its own within.

    Args:
        folder: A folder with ``config.json``.

    Raises:
        ConfigError: The file is missing or damaged, or describes no family that is known here.
    """
    path = config_path(folder)
    content = read_object(path)
    family = content.get("model_type", "bert" if path.name == GOOGLE_CONFIG else None)
    own = content.get(OUR_FAMILY, family)
    if own in FAMILIES and (FAMILIES[own].model_type or own) == family:
        family = own
    else:
        known = ", ".join(name for name, entry in FAMILIES.items() if entry.model_type is None)
        raise ConfigError(f"{path}: model_type={family!r}; supported are {known}. Give such an encoder.")
    generator = folder / GENERATOR_FOLDER
    has_generator = (generator / "config.json").is_file()
    is_share_usual = not has_generator and "generator_size" not in content
    try:
        taken, architectures = _taken(content, family), content.get("architectures")
        config = _model_config(taken, family, architectures, is_share_usual=is_share_usual)
        if config.generator_size is not None and has_generator:
            config = _with_generator(config, read_config_json(generator))
    except _Misfit as error:
        raise ConfigError(f"{path}: {error}. Give another {family}, or correct the file.") from None
    return config


class _Misfit(Exception):
    """Fields of a config.json that describe no model of ours, in words."""


def _with_generator(config: ModelConfig, generator: ModelConfig) -> ModelConfig:
    """Return a discriminator's configuration whose generator has the sizes of the one in its folder.

    Raises:
        _Misfit: Fields that follow from the discriminator's are others in the generator's folder.
    """
    # A stated share that gives the width is kept: one computed from the rounded width rounds other sizes differently.
    # Folders that transformers saved state none.
    sizes: dict[str, Any] = {}
    if generator.hidden_size != config.generator().hidden_size:
        sizes["generator_size"] = generator.hidden_size / config.hidden_size
    if generator.num_hidden_layers != config.generator().num_hidden_layers:
        sizes["generator_layers"] = generator.num_hidden_layers
    config = merge_layers(ModelConfig, vars(config), sizes)
    for name in GENERATOR_FIELDS:
        wanted, stated = getattr(config.generator(), name), getattr(generator, name)
        if stated != wanted:
            own = f"the generator of this model has {wanted} (generator_size={config.generator_size:.4g})"
            raise _Misfit(f"{GENERATOR_FOLDER}/config.json says {name}={stated}, but {own}")
    return config


def _taken(content: dict[str, Any], family: str) -> dict[str, Any]:
    """Return our fields of a config.json, with transformers' defaults; everything that we do not have is refused.

    Raises:
        _Misfit: Naming every field that is unknown, or has a value that no model of ours has.
    """
    taken, problems = read_fields(content, CONFIG_FIELDS[family])
    if taken["vocab_size"] in (None, "auto"):  # our own default, which only shards resolve
        problems.append("states no vocab_size")
    if taken["hidden_act"] not in HIDDEN_ACTS:
        problems.append(f"hidden_act={taken['hidden_act']!r}; supported are {', '.join(HIDDEN_ACTS)}")
    if problems:
        raise _Misfit("; ".join(problems))
    return {**taken, "hidden_act": HIDDEN_ACTS[taken["hidden_act"]]}


def read_fields(content: Mapping[str, Any], table: Mapping[str, Entry]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a file that are taken over, by our names, and the problems of the others.

    Args:
        content: The file.
        table: Every field that it may have.
    """
    taken, problems = dict[str, Any](), []
    for name in content:
        if name not in table:
            meant = closest(name, [*table])
            hint = f" (did you mean {meant}?)" if meant else "; if it changes nothing, remove it"
            problems.append(f"{name} is no field of this family{hint}")
    for name, entry in table.items():
        if isinstance(entry, Taken):
            value = content.get(name, entry.default)
            if value is None and name in content and None not in entry.none_is:
                problems.append(f"{name}=None is no value; leave it out")
            taken[entry.ours or name] = None if any(_is_same(value, none) for none in entry.none_is) else value
        elif isinstance(entry, Fixed):
            wanted = _derived(entry.value, {**content, **taken})
            value = content.get(name, wanted if entry.default is ... else entry.default)
            if not _is_same(value, wanted):
                problems.append(f"{name}={value!r}; only {wanted!r} is supported")
    return taken, problems


def _derived(value: Any, sizes: Mapping[str, Any]) -> Any:
    """Return the value that a field must have, computed if it follows from others."""
    try:
        return DERIVED[value](sizes) if isinstance(value, str) and value in DERIVED else value
    except (TypeError, ZeroDivisionError):  # the model's own checks name the wrong size
        return None


def _is_same(value: Any, wanted: Any) -> bool:
    """Whether two JSON values are equal; unlike in Python, true is not 1."""
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _model_config(taken: dict[str, Any], family: str, architectures: Any, *, is_share_usual: bool) -> ModelConfig:
    """Return the model that our fields describe.

    Args:
        taken: Our fields.
        family: The family.
        architectures: The classes that the file states.
        is_share_usual: Whether a generator's share is the default, with which sizes may allow no generator.

    Raises:
        _Misfit: There is no such model.
    """
    pad_id = taken.pop("pad_token_id", 0)
    if family == "modernbert":
        _translate_modernbert(taken)
    if FAMILIES[family].has_discriminator and architectures == [ARCHITECTURES[family]["none"]]:
        taken["generator_size"] = taken["generator_layers"] = None  # a generator alone
    if "pos_att_type" in taken:
        kinds = taken["pos_att_type"] or []
        taken["pos_att_type"] = [part.strip() for part in kinds.lower().split("|")] if isinstance(kinds, str) else kinds
    try:
        config = merge_layers(ModelConfig, {"family": family, **taken})
        # RoBERTa counts positions from after the padding id; its table has rows that no token reaches.
        positions = config.max_position_embeddings - unused_positions(config, pad_id)
        return merge_layers(ModelConfig, {"family": family, **taken}, {"max_position_embeddings": positions})
    except ConfigError as error:
        if is_share_usual and taken.get("generator_size"):
            return _model_config({**taken, "generator_size": None}, family, architectures, is_share_usual=False)
        _, *problems = str(error).splitlines()
        raise _Misfit("; ".join(problem.strip() for problem in problems)) from None


def _translate_modernbert(taken: dict[str, Any]) -> None:
    """Read what transformers 5 writes, kinds of layers and rotary positions by kind, as what version 4 wrote.

    Raises:
        _Misfit: Layers alternate in another way, or rotary positions are scaled, partial, or not by kind of layer.
    """
    types, layers = taken.pop("layer_types"), taken["num_hidden_layers"]
    if types is not None:
        every = types.index(FULL, 1) if FULL in types[1:] else max(1, len(types))
        if types != [SLIDING if i % every else FULL for i in range(len(types))]:
            raise _Misfit(f"layer_types={types!r}: only every n-th layer may be {FULL}, from the first on")
        if len(types) != layers:
            raise _Misfit(f"layer_types names {len(types)} layers, num_hidden_layers={layers!r}")
        taken["global_attn_every_n_layers"] = every
    names = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}
    for kind, own in (taken.pop("rope_parameters") or {}).items():
        if kind not in names:
            raise _Misfit(f"rope_parameters.{kind}: only {FULL} and {SLIDING} have parameters, each its own")
        for key, value in ({} if own is None else own).items():
            if key == "rope_theta":
                taken[names[kind]] = value
            elif key not in ROPE_PARAMETERS or not _is_same(value, ROPE_PARAMETERS[key]):
                raise _Misfit(f"rope_parameters.{kind}.{key}={value!r}: only rope_type='default' is supported")
    # transformers has one dropout for the probabilities and the output of attention; ours may differ.
    if taken["hidden_dropout_prob"] is None:
        taken["hidden_dropout_prob"] = taken["attention_probs_dropout_prob"]


def stated_length(folder: Path, positions: int) -> int | None:
    """Return the length at which a folder's tokenizer cuts texts, if it is one of the model's positions.

    transformers writes 1e30 if there is no limit.
    """
    path = folder / "tokenizer_config.json"
    length = read_object(path).get("model_max_length") if path.is_file() else None
    return length if type(length) is int and 0 < length <= positions else None


def positions_counted_from(folder: Path, model: ModelConfig) -> int | None:
    """Return the id of the padding by a folder's ``config.json``, if the family counts positions from it."""
    if not model.traits.positions_after_padding or not (folder / "config.json").is_file():
        return None
    taken, _ = read_fields(read_object(folder / "config.json"), CONFIG_FIELDS[model.family])
    return taken["pad_token_id"]  # type: ignore[no-any-return]


def is_ours(folder: Path) -> bool:
    """Tell whether a folder was exported by this package."""
    try:
        return OURS in read_object(folder / "config.json")
    except ConfigError:
        return False


def read_object(path: Path) -> dict[str, Any]:
    """Return all of a ``config.json``: a fine-tuned model's has labels and other fields of its task.

    Raises:
        ConfigError: The file is missing or damaged.
    """
    remedy = "Give a whole Hugging Face folder of a BERT model."
    read_json(path, _Typed, remedy=remedy, error=ConfigError)
    return read_json(path, dict[str, Any], remedy=remedy, error=ConfigError)
