"""What sets the relatives of BERT apart, as data: one encoder serves them all."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FamilyName = Literal["bert", "roberta", "albert", "electra", "deberta", "deberta-v2", "deberta-v3", "modernbert"]
Objective = Literal["nsp", "sop", "none"]


@dataclass(frozen=True, kw_only=True)
class Family:
    """How a family differs from BERT beyond its sizes."""

    title: str
    """The family as its paper writes it."""
    objectives: tuple[Objective, ...]
    """Sentence objectives that the family is pre-trained with; the first is the paper's."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Model fields that are usual for the family; a recipe's own values override them."""
    presets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Sizes by the name of a preset, if they are not BERT's."""
    head_act: Literal["gelu"] | None = None
    """Activation of the masked-LM head if it is not ``hidden_act``."""
    always_projects: bool = False
    """Whether the embeddings are projected to the hidden size even if they are as wide."""
    pooler_act: Literal["tanh", "gelu"] = "tanh"
    """Activation of the pooled first token, before a task's head."""
    positions_after_padding: bool = False
    """Whether ``transformers`` counts positions from the padding id + 1; ours begin at 0."""
    max_spare_rows: int = 127
    """How many rows more than the tokenizer has pieces its published word embeddings may have: their number is rounded
    up to a multiple of 8, 64 or 128."""
    own_fields: tuple[str, ...] = ()
    """Fields of ``ModelConfig`` that only this family may set; most say how attention knows positions. Empty if it
    knows none."""
    has_key_bias: bool = True
    """Whether keys (the keys of relative positions, too) have a bias if queries have one."""
    qkv_layout: Literal["split", "by_head", "fused"] = "split"
    """How ``transformers`` stores queries, keys and values: as three matrices; as one, head by head; or as one like
    ours, first all queries, then all keys, then all values."""
    is_pre_norm: bool = False
    """Whether LayerNorm comes before each sub-layer, not after it; the layers are then ModernBERT's: rotary positions,
    local and global attention, GeGLU, weights of outputs initialised smaller the more layers there are."""
    has_biases: bool = True
    """Whether dense layers and LayerNorms have a bias; the decoder of the masked-LM head has one in any case."""
    has_discriminator: bool = False
    """Whether it is pre-trained by replaced-token detection, together with a generator."""
    detects_beside_first_token: bool = False
    """Whether the head for replaced tokens adds the hidden state of [CLS] to each token's, and normalises the sum."""
    norm_after_projection: bool = False
    """Whether embeddings of another width are projected before their LayerNorm, without a bias, and not after it."""
    model_type: str | None = None
    """What ``config.json`` calls the family if it is not its name."""


_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_RELATIVE = {
    "pos_att_type": ("c2p", "p2c"),
    "position_biased_input": False,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}
"""Defaults that all generations of DeBERTa share."""
_BUCKETS = {**_RELATIVE, "position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
"""Defaults of DeBERTa's second version and of the third, which has its encoder."""

FAMILIES: dict[str, Family] = {
    # Devlin et al. 2019
    "bert": Family(title="BERT", objectives=("nsp", "sop", "none")),
    # Liu et al. 2019; roberta-base's config.json
    "roberta": Family(
        title="RoBERTa",
        objectives=("none",),
        defaults={"type_vocab_size": 1, "layer_norm_eps": 1e-5},
        head_act="gelu",
        positions_after_padding=True,
    ),
    # Lan et al. 2020; version 2 of the checkpoints drops nothing
    "albert": Family(
        title="ALBERT",
        objectives=("sop", "none"),
        defaults={"embedding_size": 128, "num_hidden_groups": 1, "hidden_act": "gelu_new", **_NO_DROPOUT},
        always_projects=True,
    ),
    # Clark et al. 2020
    "electra": Family(
        title="ELECTRA", objectives=("none",), head_act="gelu", pooler_act="gelu", has_discriminator=True
    ),
    # He et al. 2021; deberta-base's config.json
    "deberta": Family(
        title="DeBERTa",
        objectives=("none",),
        defaults=_RELATIVE,
        pooler_act="gelu",
        own_fields=("pos_att_type", "max_relative_positions", "position_biased_input"),
        has_key_bias=False,
        qkv_layout="by_head",
    ),
    # Its authors' second version, and the encoder of He et al. 2023 (version 3); deberta-v3-base's config.json
    "deberta-v2": Family(
        title="DeBERTa (version 2 or 3)",
        objectives=("none",),
        defaults=_BUCKETS,
        pooler_act="gelu",
        max_spare_rows=1024,  # 99, in the multilingual model 898
        own_fields=(
            *("pos_att_type", "max_relative_positions", "position_biased_input", "position_buckets"),
            *("share_att_key", "norm_rel_ebd", "conv_kernel_size", "conv_act"),
        ),
    ),
    # He et al. 2023: that encoder, pre-trained by replaced-token detection; rtd_base.json of microsoft/DeBERTa
    "deberta-v3": Family(
        title="DeBERTa (version 3)",
        objectives=("none",),
        defaults={**_BUCKETS, "embedding_sharing": "disentangled", "enhanced_mask_decoder": True},
        pooler_act="gelu",
        max_spare_rows=1024,
        own_fields=(
            *("pos_att_type", "max_relative_positions", "position_buckets", "share_att_key", "norm_rel_ebd"),
            *("embedding_sharing", "enhanced_mask_decoder"),
        ),
        has_discriminator=True,
        detects_beside_first_token=True,
        norm_after_projection=True,
        model_type="deberta-v2",
    ),
    # Warner et al. 2024; config.json of ModernBERT-base and ModernBERT-large
    "modernbert": Family(
        title="ModernBERT",
        objectives=("none",),
        defaults={
            "position_biased_input": False,
            "type_vocab_size": 0,
            "max_position_embeddings": 8192,
            "layer_norm_eps": 1e-5,
            "classifier_pooling": "mean",
            **_NO_DROPOUT,
        },
        presets={
            "base": {"num_hidden_layers": 22, "intermediate_size": 1152},
            "large": {"num_hidden_layers": 28, "intermediate_size": 2624},
        },
        head_act="gelu",
        own_fields=(
            *("local_attention", "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"),
            *("embedding_dropout", "mlp_dropout", "classifier_pooling"),
        ),
        qkv_layout="fused",
        is_pre_norm=True,
        has_biases=False,
    ),
}
"""The families by name; it is what ``config.json`` calls ``model_type``, unless the family says otherwise."""
