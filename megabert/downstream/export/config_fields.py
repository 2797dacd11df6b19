"""Every field of a Hugging Face ``config.json``, by family, and what megabert does with it.

A field is taken over (`Taken`), has to have one value, because other values are models that megabert does not have
(`Fixed`), or changes no number that is computed from the weights (`Unused`). There is no fourth way: a name that is in
none of these tables is refused, since it may be a misspelt field, or one that changes the model. If a file leaves a
field out, transformers' default holds. docs/families/config_json.md shows the tables; tests hold them against
transformers' classes and the code of its models.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

HEAD_WIDTH = "hidden_size / num_attention_heads"
HIDDEN_SIZE = "hidden_size"
HALF_WINDOW = "local_attention / 2"
DERIVED: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    HEAD_WIDTH: lambda sizes: sizes["hidden_size"] // sizes["num_attention_heads"],
    HIDDEN_SIZE: lambda sizes: sizes["hidden_size"],
    HALF_WINDOW: lambda sizes: sizes["local_attention"] // 2,
}
"""Values that follow from other fields."""


@dataclass(frozen=True)
class Taken:
    """A field that says something about our model."""

    default: Any
    """transformers' value if the file has none."""
    ours: str | None = None
    """The field of ``ModelConfig``; None if it has the same name."""
    none_is: tuple[Any, ...] = ()
    """Values that stand for None in our field; the first is written."""


@dataclass(frozen=True)
class Fixed:
    """A field that must have one value."""

    value: Any
    """The value, or a key of `DERIVED`."""
    default: Any = ...
    """transformers' value if the file has none, unless it is the same."""
    is_written: bool = False
    """Whether an export states it."""


@dataclass(frozen=True)
class Unused:
    """A field that changes nothing here, or nothing more."""

    why: str


Entry = Taken | Fixed | Unused


def _unused(why: str, *names: str) -> dict[str, Entry]:
    """Return entries for fields that change nothing, whose names are words of ``names``."""
    return dict.fromkeys(" ".join(names).split(), Unused(why))


def _taken(**defaults: Any) -> dict[str, Entry]:
    """Return entries for fields that are taken over under their own names, given transformers' defaults."""
    return {name: Taken(default) for name, default in defaults.items()}


def _fixed(**values: Any) -> dict[str, Entry]:
    """Return entries for fields that must have these values."""
    return {name: Fixed(value) for name, value in values.items()}


def _written(**values: Any) -> dict[str, Entry]:
    """Return entries for fields that must have these values, and that an export states."""
    return {name: Fixed(value, is_written=True) for name, value in values.items()}


ELSEWHERE = "read from elsewhere: names of classes and labels"
FAMILY = "chooses the family, or a part of it, before the other fields are read"
IDS = "ids of pieces; the tokenizer's files say them"
CHECKED = "read where a head is used, and checked against the task"
COMPUTED = "how it is computed, not what"
TASK_DROPOUT = "dropout of a task's head: fine-tuning has its own"
"""Reasons for which several fields are `Unused`."""

COMMON: Mapping[str, Entry] = {
    **_unused(FAMILY, "model_type architectures megabert_family"),
    **_unused(ELSEWHERE, "num_labels _num_labels"),
    **_unused(CHECKED, "id2label label2id problem_type sbert_ce_default_activation_function sentence_transformers"),
    **_unused(ELSEWHERE, "tokenizer_class"),
    **_unused("megabert's own: version, task", "megabert_version megabert_task"),
    **_unused("the weights show it: a decoder of its own is kept, but fills no masks", "tie_word_embeddings"),
    **_unused(IDS, "bos_token_id eos_token_id cls_token_id sep_token_id unk_token_id mask_token_id"),
    **_unused("origin", "transformers_version _name_or_path name_or_path _commit_hash finetuning_task language"),
    **_unused(
        COMPUTED,
        "dtype torch_dtype chunk_size_feed_forward gradient_checkpointing attn_implementation _attn_implementation",
        "_attn_implementation_autoset torchscript use_bfloat16 tf_legacy_loss xla_device",
    ),
    **_unused("what transformers returns", "output_attentions output_hidden_states output_past"),
    **_unused("what transformers returns", "return_dict use_return_dict"),
    **_unused(TASK_DROPOUT, "classifier_dropout"),
    **_unused("of decoders alone", "use_cache cross_attention_hidden_size tie_encoder_decoder decoder_start_token_id"),
    **_unused(
        "generates text, which encoders do not",
        "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k",
        "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size",
        "bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id",
        "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens",
        "begin_suppress_tokens prefix task_specific_params",
    ),
    **_fixed(is_decoder=False, is_encoder_decoder=False, add_cross_attention=False, pruned_heads={}),
    "auto_map": Fixed(None),  # code of its own
    "function_to_apply": Fixed("softmax"),  # transformers' pipeline applies it to a classifier's logits
    "quantization_config": Fixed(None),
}
"""Fields of every family."""

_BASE: Mapping[str, Entry] = {
    **COMMON,
    # The vocabulary has no default here: a file without it is refused.
    **_taken(vocab_size=None, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
    **_taken(max_position_embeddings=512, initializer_range=0.02),
}

_BERT: Mapping[str, Entry] = {
    **_BASE,
    **_written(position_embedding_type="absolute", is_decoder=False),
    "embedding_size": Fixed(HIDDEN_SIZE),
    **_taken(hidden_act="gelu", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
    **_taken(type_vocab_size=2, layer_norm_eps=1e-12),
    "pad_token_id": Unused(IDS),
    **_unused(
        "google's converter wrote it, no model reads it",
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head",
        "pooler_type",
    ),
}

_DEBERTA: Mapping[str, Entry] = {
    **{name: entry for name, entry in _BERT.items() if not name.startswith(("position_emb", "pooler_", "direction"))},
    "relative_attention": Fixed(True, default=False, is_written=True),
    **_written(is_decoder=False, pooler_dropout=0, pooler_hidden_act="gelu"),
    **_fixed(pooler_hidden_size=HIDDEN_SIZE, legacy=True),
    **_taken(type_vocab_size=0, layer_norm_eps=1e-7, position_biased_input=True),
    "pos_att_type": Taken(None, none_is=(None,)),
    "max_relative_positions": Taken(-1, none_is=(-1, 0)),
    "cls_dropout": Unused(TASK_DROPOUT),
    "padding_idx": Unused("an older name of pad_token_id"),
}

_DEBERTA_2: Mapping[str, Entry] = {
    **_DEBERTA,
    **_written(conv_groups=1),
    "attention_head_size": Fixed(HEAD_WIDTH),
    **_taken(hidden_size=1536, num_hidden_layers=24, num_attention_heads=24, intermediate_size=6144),
    **_taken(share_att_key=False, norm_rel_ebd="none", conv_act="tanh"),
    "position_buckets": Taken(-1, none_is=(-1, 0)),
    "conv_kernel_size": Taken(0, none_is=(0, -1)),
}

CONFIG_FIELDS: Mapping[str, Mapping[str, Entry]] = {
    "bert": _BERT,
    "roberta": {**_BERT, "pad_token_id": Taken(1)},  # positions are counted from it
    "albert": {
        **_BERT,
        **_written(inner_group_num=1),
        **_taken(hidden_size=4096, num_attention_heads=64, intermediate_size=16384, embedding_size=128),
        **_taken(num_hidden_groups=1, hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        **_fixed(down_scale_factor=1, gap_size=0, net_structure_type=0, num_memory_blocks=0, layers_to_keep=[]),
        "classifier_dropout_prob": Unused(TASK_DROPOUT),
    },
    "electra": {
        **_BERT,
        **_taken(embedding_size=128, hidden_size=256, num_attention_heads=4, intermediate_size=1024),
        "generator_size": Taken(0.25, none_is=(None,)),  # of transformers' two models, ours makes one
        "generator_layers": Taken(None, none_is=(None,)),
        **_fixed(summary_type="first", summary_use_proj=True, summary_activation="gelu", summary_proj_to_labels=False),
        **_unused(TASK_DROPOUT, "summary_first_dropout summary_last_dropout"),
    },
    "deberta": {**_DEBERTA, **_written(talking_head=False)},
    "deberta-v2": _DEBERTA_2,
    "deberta-v3": {
        **_DEBERTA_2,
        "embedding_size": Taken(None, none_is=(None,)),
        **dict.fromkeys(("generator_size", "generator_layers"), Taken(None, none_is=(None,))),
        **_taken(embedding_sharing="disentangled", enhanced_mask_decoder=True),
    },
    "modernbert": {
        **_BASE,
        **_written(attention_bias=False, mlp_bias=False, norm_bias=False, classifier_bias=False, decoder_bias=True),
        **_written(classifier_activation="gelu"),
        **_fixed(head_dim=HEAD_WIDTH, partial_rotary_factor=1, rope_scaling=None),
        **_taken(num_hidden_layers=22, intermediate_size=1152, max_position_embeddings=8192),
        "hidden_activation": Taken("gelu", "hidden_act"),
        "norm_eps": Taken(1e-5, "layer_norm_eps"),
        "attention_dropout": Taken(0.0, "attention_probs_dropout_prob"),
        "hidden_dropout_prob": Taken(None),  # ours alone: transformers has one dropout for both places of attention
        **_taken(local_attention=128, global_attn_every_n_layers=3, embedding_dropout=0.0, mlp_dropout=0.0),
        **_taken(global_rope_theta=160_000.0, local_rope_theta=10_000.0, classifier_pooling="cls"),
        "sliding_window": Fixed(HALF_WINDOW),
        "layer_types": Taken(None, none_is=(None,)),  # this and the next: what version 5 writes for the rows above
        "rope_parameters": Taken(None, none_is=(None,)),
        "pad_token_id": Unused(IDS),
        "initializer_cutoff_factor": Unused("initial weights alone"),
        "layer_norm_eps": Unused("norm_eps says it"),
        "position_embedding_type": Unused("rotary positions have no table"),
        **_unused(COMPUTED, "deterministic_flash_attn reference_compile repad_logits_with_grad"),
        **_unused(COMPUTED, "sparse_prediction sparse_pred_ignore_index"),
    },
}
"""The fields of config.json, by family and name."""
