"""Every field of a Hugging Face ``config.json``, by family, and what megabert does with it.

A field is taken over (`Taken`), has to have one value, because other values are models that megabert does not have
(`Fixed`), or changes no number that is computed from the weights (`Unused`). There is no fourth way: a name that is in
none of these tables is refused, since it may be a misspelt field, or one that changes the model. Where a file leaves a
field out, transformers' default holds. docs/families/config_json.md shows the tables; tests hold them against
transformers' classes and the code of its models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HEAD_WIDTH = "hidden_size / num_attention_heads"
HIDDEN_SIZE = "hidden_size"
HALF_WINDOW = "local_attention / 2"


@dataclass(frozen=True)
class Taken:
    """A field that says something about our model."""

    default: Any
    """transformers' value where the file has none."""
    ours: str | None = None
    """The field of ``ModelConfig``; None if it has the same name."""
    none_is: tuple[Any, ...] = ()
    """Values that stand for None in our field; the first is written."""


@dataclass(frozen=True)
class Fixed:
    """A field that must have one value."""

    value: Any
    """The value; `HEAD_WIDTH` and its like stand for what they come to."""
    default: Any = ...
    """transformers' value where the file has none, if it is another one."""
    is_written: bool = False
    """Whether an export states it."""


@dataclass(frozen=True)
class Unused:
    """A field that changes nothing here."""

    why: str


Entry = Taken | Fixed | Unused


def _all(why: str, names: str) -> dict[str, Entry]:
    return dict.fromkeys(names.split(), Unused(why))


COMMON: Mapping[str, Entry] = {
    **_all("read from elsewhere: names of family, classes and labels", "model_type architectures id2label label2id"),
    **_all("read from elsewhere: names of family, classes and labels", "num_labels _num_labels problem_type"),
    **_all("megabert's own: version, task", "megabert_version megabert_task"),
    **_all("the weights show it: a decoder of its own is refused", "tie_word_embeddings"),
    **_all("ids of pieces; the tokenizer's files say them", "bos_token_id eos_token_id cls_token_id sep_token_id"),
    **_all("ids of pieces; the tokenizer's files say them", "unk_token_id mask_token_id tokenizer_class"),
    **_all("origin", "transformers_version _name_or_path name_or_path _commit_hash finetuning_task language"),
    **_all("how it is computed, not what", "dtype torch_dtype chunk_size_feed_forward gradient_checkpointing"),
    **_all("how it is computed, not what", "attn_implementation _attn_implementation _attn_implementation_autoset"),
    **_all("how it is computed, not what", "torchscript use_bfloat16 tf_legacy_loss xla_device"),
    **_all(
        "what transformers returns", "output_attentions output_hidden_states output_past return_dict use_return_dict"
    ),
    **_all("dropout of a task's head: fine-tuning has its own", "classifier_dropout"),
    **_all("of decoders alone", "use_cache cross_attention_hidden_size tie_encoder_decoder decoder_start_token_id"),
    **_all(
        "generates text, which encoders do not",
        "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k "
        "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
        "bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id "
        "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
        "begin_suppress_tokens prefix task_specific_params",
    ),
    "is_decoder": Fixed(False),
    "is_encoder_decoder": Fixed(False),
    "add_cross_attention": Fixed(False),
    "pruned_heads": Fixed({}),
    "auto_map": Fixed(None),  # code of its own
    "quantization_config": Fixed(None),
}
"""Fields of every family."""

_SIZES: Mapping[str, Entry] = {
    "vocab_size": Taken(None),  # has no default here: a file without it is refused
    "hidden_size": Taken(768),
    "num_hidden_layers": Taken(12),
    "num_attention_heads": Taken(12),
    "intermediate_size": Taken(3072),
    "max_position_embeddings": Taken(512),
    "initializer_range": Taken(0.02),
}

_BERT: Mapping[str, Entry] = {
    **COMMON,
    **_SIZES,
    "position_embedding_type": Fixed("absolute", is_written=True),
    "is_decoder": Fixed(False, is_written=True),
    "embedding_size": Fixed(HIDDEN_SIZE),
    "hidden_act": Taken("gelu"),
    "hidden_dropout_prob": Taken(0.1),
    "attention_probs_dropout_prob": Taken(0.1),
    "type_vocab_size": Taken(2),
    "layer_norm_eps": Taken(1e-12),
    **_all("ids of pieces; the tokenizer's files say them", "pad_token_id"),
    **_all(
        "google's converter wrote it, no model reads it", "directionality pooler_fc_size pooler_num_attention_heads"
    ),
    **_all("google's converter wrote it, no model reads it", "pooler_num_fc_layers pooler_size_per_head pooler_type"),
}

_DEBERTA: Mapping[str, Entry] = {
    **{name: entry for name, entry in _BERT.items() if not name.startswith(("position_emb", "pooler_", "direction"))},
    "relative_attention": Fixed(True, default=False, is_written=True),
    "is_decoder": Fixed(False, is_written=True),
    "pooler_dropout": Fixed(0, is_written=True),
    "pooler_hidden_act": Fixed("gelu", is_written=True),
    "pooler_hidden_size": Fixed(HIDDEN_SIZE),
    "legacy": Fixed(True),
    "type_vocab_size": Taken(0),
    "layer_norm_eps": Taken(1e-7),
    "pos_att_type": Taken(None, none_is=(None,)),
    "max_relative_positions": Taken(-1, none_is=(-1, 0)),
    "position_biased_input": Taken(True),
    **_all("dropout of a task's head: fine-tuning has its own", "cls_dropout"),
    **_all("an older name of pad_token_id", "padding_idx"),
}

CONFIG_FIELDS: Mapping[str, Mapping[str, Entry]] = {
    "bert": _BERT,
    "roberta": {**_BERT, "pad_token_id": Taken(1)},  # positions are counted from it
    "albert": {
        **_BERT,
        "inner_group_num": Fixed(1, is_written=True),
        "hidden_size": Taken(4096),
        "num_attention_heads": Taken(64),
        "intermediate_size": Taken(16384),
        "embedding_size": Taken(128),
        "num_hidden_groups": Taken(1),
        "hidden_act": Taken("gelu_new"),
        "hidden_dropout_prob": Taken(0.0),
        "attention_probs_dropout_prob": Taken(0.0),
        "down_scale_factor": Fixed(1),
        **dict.fromkeys(("gap_size", "net_structure_type", "num_memory_blocks"), Fixed(0)),
        "layers_to_keep": Fixed([]),
        **_all("dropout of a task's head: fine-tuning has its own", "classifier_dropout_prob"),
    },
    "electra": {
        **_BERT,
        "embedding_size": Taken(128),
        "hidden_size": Taken(256),
        "num_attention_heads": Taken(4),
        "intermediate_size": Taken(1024),
        "generator_size": Taken(0.25, none_is=(None,)),  # of transformers' two models, ours makes one
        "summary_type": Fixed("first"),
        "summary_use_proj": Fixed(True),
        "summary_activation": Fixed("gelu"),
        "summary_proj_to_labels": Fixed(False),
        **_all("dropout of a task's head: fine-tuning has its own", "summary_first_dropout summary_last_dropout"),
    },
    "deberta": {**_DEBERTA, "talking_head": Fixed(False, is_written=True)},
    "deberta-v2": {
        **_DEBERTA,
        "conv_groups": Fixed(1, is_written=True),
        "attention_head_size": Fixed(HEAD_WIDTH),
        "hidden_size": Taken(1536),
        "num_hidden_layers": Taken(24),
        "num_attention_heads": Taken(24),
        "intermediate_size": Taken(6144),
        "position_buckets": Taken(-1, none_is=(-1, 0)),
        "share_att_key": Taken(False),
        "norm_rel_ebd": Taken("none"),
        "conv_kernel_size": Taken(0, none_is=(0, -1)),
        "conv_act": Taken("tanh"),
    },
    "modernbert": {
        **COMMON,
        **_SIZES,
        **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), Fixed(False, is_written=True)),
        "classifier_bias": Fixed(False, is_written=True),
        "decoder_bias": Fixed(True, is_written=True),
        "classifier_activation": Fixed("gelu", is_written=True),
        "head_dim": Fixed(HEAD_WIDTH),
        "partial_rotary_factor": Fixed(1),
        "rope_scaling": Fixed(None),
        "num_hidden_layers": Taken(22),
        "intermediate_size": Taken(1152),
        "max_position_embeddings": Taken(8192),
        "hidden_activation": Taken("gelu", "hidden_act"),
        "norm_eps": Taken(1e-5, "layer_norm_eps"),
        "attention_dropout": Taken(0.0, "attention_probs_dropout_prob"),
        "hidden_dropout_prob": Taken(None),  # ours alone: transformers has one dropout for both places of attention
        "local_attention": Taken(128),
        "sliding_window": Fixed(HALF_WINDOW),
        "global_attn_every_n_layers": Taken(3),
        "global_rope_theta": Taken(160_000.0),
        "local_rope_theta": Taken(10_000.0),
        "embedding_dropout": Taken(0.0),
        "mlp_dropout": Taken(0.0),
        "classifier_pooling": Taken("cls"),
        "layer_types": Taken(None, none_is=(None,)),  # this and the next: what version 5 writes for those above
        "rope_parameters": Taken(None, none_is=(None,)),
        **_all("ids of pieces; the tokenizer's files say them", "pad_token_id"),
        **_all("initial weights alone", "initializer_cutoff_factor"),
        **_all("norm_eps says it", "layer_norm_eps"),
        **_all("rotary positions have no table", "position_embedding_type"),
        **_all("how it is computed, not what", "deterministic_flash_attn reference_compile repad_logits_with_grad"),
        **_all("how it is computed, not what", "sparse_prediction sparse_pred_ignore_index"),
        **_all("dropout of a task's head: fine-tuning has its own", "classifier_dropout"),
    },
}
"""What a config.json of each family may say, by the names of its fields."""
