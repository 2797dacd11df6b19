"""``config.json`` to and from our ``ModelConfig``.

Both have BERT's fields under the same names. The table ``EXCHANGES`` says, for each family, in what else they differ.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

import megabert
from megabert.config.families import FAMILIES, Objective
from megabert.config.loading import merge_layers
from megabert.config.model import ModelConfig
from megabert.errors import ConfigError
from megabert.json_files import read_json
from megabert.models.convert import unused_positions
from megabert.tokenization import SpecialIds

OURS = "megabert_version"
"""Key in config.json that marks a folder as an export of this package."""

GOOGLE_CONFIG = "bert_config.json"
GENERATOR_FOLDER = "generator"
"""Folder within that of an ELECTRA's discriminator, which holds the generator in the same form."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
}
"""Our ``hidden_act`` by theirs; the last two are the same function."""

RELATIVE = {"relative_attention": True, "is_decoder": False, "pooler_dropout": 0, "pooler_hidden_act": "gelu"}
"""What a DeBERTa's config.json must say. Where ``relative_attention`` is missing, transformers takes it for false."""

REQUIRED = {"position_embedding_type": "absolute", "is_decoder": False}
"""What a config.json must say or leave out: other values are other models. These are transformers' defaults."""


@dataclass(frozen=True, kw_only=True)
class _Typed:
    """Fields of a foreign config.json that are read here; ``ModelConfig`` checks the types of those that it has."""

    model_type: str | None = None
    hidden_act: str | None = None
    hidden_activation: str | None = None
    layer_types: tuple[str, ...] | None = None
    rope_parameters: dict[str, Any] | None = None
    architectures: tuple[str, ...] | None = None
    pad_token_id: Annotated[int, Field(ge=0, le=1 << 24)] | None = None
    pos_att_type: str | tuple[str, ...] | None = None
    id2label: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], str | int | float | bool | None] | None = None
    megabert_task: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How ``transformers`` describes a family."""

    architectures: Mapping[Objective | Literal["rtd"], str]
    """Class that has all weights of a model, by objective; ``rtd`` is ELECTRA's discriminator."""
    own_fields: tuple[str, ...] = ()
    """Fields of ours that its config.json has besides BERT's."""
    required: Mapping[str, Any] = field(default_factory=lambda: REQUIRED)
    """Values that its config.json must have, or leave out."""
    their_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values that transformers takes where config.json leaves a field out, if they are not our defaults."""
    optional: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ours that may be None, and the value that means this in config.json."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Fields of ours that have another name in its config.json."""
    left_out: tuple[str, ...] = ()
    """Fields of ours, besides other families' own, that its config.json does not have."""
    special_ids: Mapping[str, str] = field(
        default_factory=lambda: {"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"}
    )
    """Names in its config.json of ids of special pieces, and their roles."""
    translate: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Returns a config.json with those fields in our form that state the same in another."""


_DEBERTA = {
    "relative_attention": False,
    "position_biased_input": True,
    "pos_att_type": (),
    "max_relative_positions": -1,
    "layer_norm_eps": 1e-7,
    "type_vocab_size": 0,
}
"""Values that transformers takes where a DeBERTa's config.json leaves a field out."""

FULL, SLIDING = "full_attention", "sliding_attention"
"""How transformers calls a ModernBERT's layers with global and with local attention."""


def _translate_modernbert(content: dict[str, Any]) -> dict[str, Any]:
    """Read what transformers 5 writes, kinds of layers and rotary positions by kind, as what version 4 wrote.

    Raises:
        ConfigError: Layers alternate in another way, or rotary positions are scaled.
    """
    types = tuple(content.get("layer_types") or ())
    every = types.index(FULL, 1) if FULL in types[1:] else len(types)
    if types and types != tuple(SLIDING if i % every else FULL for i in range(len(types))):
        raise ConfigError(f"invalid:\n  layer_types={types!r}: only every n-th layer may be {FULL}, from the first on")
    content = {**content, **({"global_attn_every_n_layers": every} if types else {})}
    for kind, name in ((FULL, "global_rope_theta"), (SLIDING, "local_rope_theta")):
        own = (content.get("rope_parameters") or {}).get(kind) or {}
        if not isinstance(own, dict) or own.get("rope_type", "default") != "default" or content.get("rope_scaling"):
            raise ConfigError("invalid:\n  rope_parameters: only rope_type='default' is supported")
        content |= {name: own["rope_theta"]} if "rope_theta" in own else {}
    # transformers has one dropout for the probabilities and the output of attention; ours may differ.
    return {"hidden_dropout_prob": content["attention_probs_dropout_prob"], **content}


EXCHANGES: dict[str, Exchange] = {
    "bert": Exchange(
        architectures={"nsp": "BertForPreTraining", "sop": "BertForPreTraining", "none": "BertForMaskedLM"}
    ),
    "roberta": Exchange(
        architectures={"none": "RobertaForMaskedLM"},
        their_defaults={"type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 1},
    ),
    "albert": Exchange(
        architectures={"sop": "AlbertForPreTraining", "none": "AlbertForMaskedLM"},
        own_fields=("embedding_size", "num_hidden_groups"),
        required={**REQUIRED, "inner_group_num": 1},
        their_defaults={"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
    ),
    "electra": Exchange(
        architectures={"rtd": "ElectraForPreTraining", "none": "ElectraForMaskedLM"},
        own_fields=("embedding_size", "generator_size"),
        their_defaults={
            "embedding_size": 128,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
            "generator_size": 0.25,
        },
    ),
    "deberta": Exchange(
        architectures={"none": "DebertaForMaskedLM"},
        own_fields=FAMILIES["deberta"].own_fields,
        required={**RELATIVE, "talking_head": False},
        their_defaults=_DEBERTA,
        optional={"max_relative_positions": -1},
    ),
    "deberta-v2": Exchange(
        architectures={"none": "DebertaV2ForMaskedLM"},
        own_fields=FAMILIES["deberta-v2"].own_fields,
        required={**RELATIVE, "conv_groups": 1},
        their_defaults={
            **_DEBERTA,
            "hidden_size": 1536,
            "num_hidden_layers": 24,
            "num_attention_heads": 24,
            "intermediate_size": 6144,
            "position_buckets": -1,
            "share_att_key": False,
            "norm_rel_ebd": "none",
            "conv_kernel_size": 0,
            "conv_act": "tanh",
        },
        optional={"max_relative_positions": -1, "position_buckets": -1, "conv_kernel_size": 0},
    ),
    "modernbert": Exchange(
        architectures={"none": "ModernBertForMaskedLM"},
        own_fields=FAMILIES["modernbert"].own_fields,
        required={
            "attention_bias": False,
            "mlp_bias": False,
            "norm_bias": False,
            "classifier_bias": False,
            "decoder_bias": True,
            "classifier_activation": "gelu",
        },
        their_defaults={"num_hidden_layers": 22, "intermediate_size": 1152, "attention_dropout": 0.0},
        renamed={
            "hidden_act": "hidden_activation",
            "layer_norm_eps": "norm_eps",
            "attention_probs_dropout_prob": "attention_dropout",
        },
        left_out=("type_vocab_size",),
        special_ids={
            "pad_token_id": "pad",
            "bos_token_id": "cls",
            "eos_token_id": "sep",
            "cls_token_id": "cls",
            "sep_token_id": "sep",
        },
        translate=_translate_modernbert,
    ),
}
"""Exchange by family, which is the ``model_type`` in config.json."""

OURS_ALONE = ("preset", "family", *sorted({name for e in EXCHANGES.values() for name in e.own_fields}))
"""Fields of ``ModelConfig`` that BERT's config.json does not have."""


def config_json(config: ModelConfig, *, architecture: str, special_ids: SpecialIds) -> dict[str, Any]:
    """Return the content of ``config.json``.

    Args:
        config: Sizes and family; ``vocab_size`` must be a number.
        architecture: Class of ``transformers`` that has all exported weights.
        special_ids: Special tokens of the tokenizer.
    """
    exchange = EXCHANGES[config.family]
    left_out = {*OURS_ALONE, *exchange.left_out} - set(exchange.own_fields)
    shape = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in left_out}
    if "embedding_size" in shape:
        shape["embedding_size"] = config.embedding_width
    if "num_hidden_groups" in shape:
        shape["num_hidden_groups"] = config.num_hidden_groups or config.num_hidden_layers
    shape["max_position_embeddings"] += unused_positions(config, special_ids.pad)
    shape |= {name: none for name, none in exchange.optional.items() if shape[name] is None}
    return {
        "architectures": [architecture],
        "model_type": config.family,
        **exchange.required,
        **{exchange.renamed.get(name, name): value for name, value in shape.items()},
        **{name: getattr(special_ids, role) for name, role in exchange.special_ids.items()},
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        OURS: megabert.__version__,
    }


def read_config_json(folder: Path) -> ModelConfig:
    """Read family and sizes of a model; those of an ELECTRA's generator from its own folder within.

    Args:
        folder: A folder with ``config.json``.

    Raises:
        ConfigError: The file is missing or damaged, or describes no family that is known here.
    """
    path = config_path(folder)
    content = read_object(path)
    family = content.get("model_type", "bert" if path.name == GOOGLE_CONFIG else None)
    if family not in EXCHANGES:
        raise ConfigError(f"{path}: model_type={family!r}; supported are {', '.join(EXCHANGES)}. Give such an encoder.")
    # Fill in what transformers would, then refuse what our models cannot do.
    exchange = EXCHANGES[family]
    content = {**exchange.their_defaults, **content}
    for key, value in exchange.required.items():
        if content.get(key, value) != value:
            raise ConfigError(
                f"{path}: {key}={content.get(key)!r}; only {value!r} is supported. Give another {family}."
            )
    content |= {ours: content[theirs] for ours, theirs in exchange.renamed.items() if theirs in content}
    activation = content.get("hidden_act", FAMILIES[family].defaults.get("hidden_act", "gelu"))
    if activation not in ACTIVATIONS:
        raise ConfigError(f"{path}: hidden_act={activation!r}; supported are {', '.join(ACTIVATIONS)}.")
    # Our own default is "auto", which only shards resolve.
    if content.get("vocab_size") in (None, "auto"):
        raise ConfigError(f"{path}: states no vocab_size. Give a complete Hugging Face folder.")
    generator = folder / GENERATOR_FOLDER
    try:
        content = exchange.translate({**content, "family": family, "hidden_act": ACTIVATIONS[activation]})
        config = _model_config(content, exchange)
        if config.generator_size is not None and (generator / "config.json").is_file():
            share = read_config_json(generator).hidden_size / config.hidden_size
            config = merge_layers(ModelConfig, vars(config), {"generator_size": share})
    except ConfigError as error:
        problems = "; ".join(line.strip() for line in str(error).splitlines()[1:])
        raise ConfigError(f"{path}: {problems}. Give a whole Hugging Face folder of a BERT model.") from None
    return config


def _model_config(content: dict[str, Any], exchange: Exchange) -> ModelConfig:
    """Translate what is said in another way than ours."""
    if content.get("architectures") == [exchange.architectures["none"]]:
        content["generator_size"] = None  # ELECTRA's generator alone
    names = {f.name for f in fields(ModelConfig)} - {*OURS_ALONE, *exchange.left_out}
    names |= {"family", *exchange.own_fields}
    shape = {name: value for name, value in content.items() if name in names}
    shape |= {name: None for name, none in exchange.optional.items() if shape[name] in (none, 0)}
    if isinstance(shape.get("pos_att_type"), str):
        shape["pos_att_type"] = [part.strip() for part in shape["pos_att_type"].lower().split("|")]
    config = merge_layers(ModelConfig, shape)
    # RoBERTa counts positions from behind the padding id; its table has rows that no token reaches.
    unused = unused_positions(config, content.get("pad_token_id") or 0)
    return merge_layers(ModelConfig, shape, {"max_position_embeddings": config.max_position_embeddings - unused})


def config_path(folder: Path) -> Path:
    """Return where a model's shape is stated: ``config.json``, or ``bert_config.json`` in the archives of 2018."""
    own, google = folder / "config.json", folder / GOOGLE_CONFIG
    return google if google.is_file() and not own.is_file() else own


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
