"""Names of parameters here and in ``transformers``, family by family, as data.

A pair is (ours, theirs). ``#`` stands for a number and ``*`` for any rest of a name, and both sides have them in the
same order. For RoBERTa the pair

    ("bert.encoder.layer.#.output.LayerNorm.dense_bias", "roberta.encoder.layer.#.output.dense.bias")

renames our ``bert.encoder.layer.7.output.LayerNorm.dense_bias`` to ``roberta.encoder.layer.7.output.dense.bias``, and
back. The first pair that fits a whole name decides, so special cases come before ``("bert.*", "roberta.*")``; a name
that no pair fits is the same on both sides.
"""

import re
from functools import lru_cache

Pairs = tuple[tuple[str, str], ...]
"""(Our pattern, their pattern), the first that fits decides."""

VOCABULARY_ROWS = (
    *("embeddings.word_embeddings.weight", "embeddings.word_embeddings.difference"),
    "cls.predictions.decoder.bias",
)
"""How the names of our parameters end that have one row a piece, padded to a multiple of 64 rows."""

DECODER = "cls.predictions.decoder.weight"
"""The matrix that turns the masked-LM head's output into logits: the word embeddings, so no parameter of its own. Where
a file's differs from these, it is read under this name, and what needs the head refuses it."""


def _encoder(prefix: str) -> Pairs:
    """Return the pairs of layers named as in BERT; only biases that a fused op adds are in other modules with us."""
    layer = f"{prefix}.encoder.layer.#"
    return (
        ("bert.encoder.layer.#.attention.output.LayerNorm.dense_bias", f"{layer}.attention.output.dense.bias"),
        ("bert.encoder.layer.#.output.LayerNorm.dense_bias", f"{layer}.output.dense.bias"),
        ("bert.encoder.layer.#.intermediate.activation.bias", f"{layer}.intermediate.dense.bias"),
        ("bert.*", f"{prefix}.*"),
    )


def _transform(head: str, layer_norm: str = "LayerNorm") -> Pairs:
    """Return the pairs of the masked-LM head's dense layer and LayerNorm."""
    return (
        ("cls.predictions.transform.activation.bias", f"{head}.dense.bias"),
        ("cls.predictions.transform.dense.*", f"{head}.dense.*"),
        ("cls.predictions.transform.LayerNorm.*", f"{head}.{layer_norm}.*"),
    )


def _decoder(head: str) -> Pairs:
    """Return the pairs of a decoder whose bias is a parameter of the head; files may hold it in the decoder as well."""
    return (("cls.predictions.decoder.bias", f"{head}.bias"), ("cls.predictions.decoder.*", f"{head}.decoder.*"))


_ALBERT = "albert.encoder.albert_layer_groups.#.albert_layers.0"

_DEBERTA: Pairs = (
    ("bert.pooler.*", "pooler.*"),  # it belongs to the class of a task, not to the encoder
    ("bert.encoder.relative.weight", "deberta.encoder.rel_embeddings.weight"),
    ("bert.encoder.relative.LayerNorm.*", "deberta.encoder.LayerNorm.*"),
    ("bert.encoder.convolution.LayerNorm.*", "deberta.encoder.conv.LayerNorm.*"),
    ("bert.encoder.convolution.*", "deberta.encoder.conv.conv.*"),
    *_encoder("deberta"),
    *_transform("cls.predictions.transform"),
    *_decoder("cls.predictions"),
    # In the files of the authors, and in transformers where config.json says legacy: false.
    *_transform("lm_predictions.lm_head"),
    *_decoder("lm_predictions.lm_head"),
)
_DEBERTA_SELF = "deberta.encoder.layer.#.attention.self"
_DEBERTA_2: Pairs = (
    ("bert.encoder.layer.#.attention.self.query.*", f"{_DEBERTA_SELF}.query_proj.*"),
    ("bert.encoder.layer.#.attention.self.key.*", f"{_DEBERTA_SELF}.key_proj.*"),
    ("bert.encoder.layer.#.attention.self.value.*", f"{_DEBERTA_SELF}.value_proj.*"),
    ("bert.encoder.layer.#.attention.self.position_key.*", f"{_DEBERTA_SELF}.pos_key_proj.*"),
    ("bert.encoder.layer.#.attention.self.position_query.*", f"{_DEBERTA_SELF}.pos_query_proj.*"),
    *_DEBERTA,
)
_MODERN = "model.layers.#"

KEY_MAPS: dict[str, Pairs] = {
    "bert": (*_encoder("bert"), *_transform("cls.predictions.transform"), *_decoder("cls.predictions")),
    "roberta": (*_encoder("roberta"), *_transform("lm_head", "layer_norm"), *_decoder("lm_head")),
    "albert": (
        ("bert.embeddings.*", "albert.embeddings.*"),
        ("bert.embeddings_project.*", "albert.encoder.embedding_hidden_mapping_in.*"),
        ("bert.encoder.layer.#.attention.output.LayerNorm.dense_bias", f"{_ALBERT}.attention.dense.bias"),
        ("bert.encoder.layer.#.attention.output.dense.*", f"{_ALBERT}.attention.dense.*"),
        ("bert.encoder.layer.#.attention.output.LayerNorm.*", f"{_ALBERT}.attention.LayerNorm.*"),
        ("bert.encoder.layer.#.attention.self.*", f"{_ALBERT}.attention.*"),
        ("bert.encoder.layer.#.intermediate.activation.bias", f"{_ALBERT}.ffn.bias"),
        ("bert.encoder.layer.#.intermediate.dense.*", f"{_ALBERT}.ffn.*"),
        ("bert.encoder.layer.#.output.LayerNorm.dense_bias", f"{_ALBERT}.ffn_output.bias"),
        ("bert.encoder.layer.#.output.dense.*", f"{_ALBERT}.ffn_output.*"),
        ("bert.encoder.layer.#.output.LayerNorm.*", f"{_ALBERT}.full_layer_layer_norm.*"),
        ("bert.pooler.dense.*", "albert.pooler.*"),
        *_transform("predictions"),
        *_decoder("predictions"),
        ("cls.seq_relationship.*", "sop_classifier.classifier.*"),
    ),
    "electra": (
        *_encoder("electra"),
        *_transform("generator_predictions"),
        ("cls.predictions.decoder.*", "generator_lm_head.*"),
        ("discriminator_predictions.activation.bias", "discriminator_predictions.dense.bias"),
    ),
    "deberta": (
        ("bert.encoder.layer.#.attention.self.query_bias", f"{_DEBERTA_SELF}.q_bias"),
        ("bert.encoder.layer.#.attention.self.value_bias", f"{_DEBERTA_SELF}.v_bias"),
        ("bert.encoder.layer.#.attention.self.position_key.*", f"{_DEBERTA_SELF}.pos_proj.*"),
        ("bert.encoder.layer.#.attention.self.position_query.*", f"{_DEBERTA_SELF}.pos_q_proj.*"),
        *_DEBERTA,
    ),
    "deberta-v2": _DEBERTA_2,
    "deberta-v3": (
        # As in the authors' files; transformers' classes read neither of these.
        ("cls.position_embeddings.*", "deberta.embeddings.position_embeddings.*"),
        ("discriminator_predictions.activation.bias", "mask_predictions.dense.bias"),
        ("discriminator_predictions.dense.*", "mask_predictions.dense.*"),
        ("discriminator_predictions.LayerNorm.*", "mask_predictions.LayerNorm.*"),
        ("discriminator_predictions.dense_prediction.*", "mask_predictions.classifier.*"),
        *_DEBERTA_2,
    ),
    "modernbert": (
        ("bert.embeddings.word_embeddings.*", "model.embeddings.tok_embeddings.*"),
        ("bert.embeddings.LayerNorm.*", "model.embeddings.norm.*"),
        ("bert.encoder.layer.#.attention.LayerNorm.*", f"{_MODERN}.attn_norm.*"),
        ("bert.encoder.layer.#.attention.self.qkv.*", f"{_MODERN}.attn.Wqkv.*"),
        ("bert.encoder.layer.#.attention.output.*", f"{_MODERN}.attn.Wo.*"),
        ("bert.encoder.layer.#.feed_forward.LayerNorm.*", f"{_MODERN}.mlp_norm.*"),
        ("bert.encoder.layer.#.feed_forward.input_and_gate.*", f"{_MODERN}.mlp.Wi.*"),
        ("bert.encoder.layer.#.feed_forward.output.*", f"{_MODERN}.mlp.Wo.*"),
        ("bert.encoder.LayerNorm.*", "model.final_norm.*"),
        ("bert.*", "model.*"),  # not in a ModernBERT: reported as belonging to the encoder
        ("cls.predictions.transform.dense.*", "head.dense.*"),
        ("cls.predictions.transform.LayerNorm.*", "head.norm.*"),
        ("cls.predictions.decoder.*", "decoder.*"),
    ),
}
"""The pairs of each family."""

PREFIXES = {"deberta-v2": "deberta", "deberta-v3": "deberta", "modernbert": "model"}
"""Beginnings of the encoder's names in ``transformers`` if they are not the family's name."""
BARE_NAMES = re.compile(r"^(?=(embeddings|embeddings_project|encoder|pooler|layers|final_norm)\.)")
"""How names begin in a file of a bare encoder (``AutoModel``)."""

OLD_NAMES = (
    (r"\bLayerNorm\.gamma$", "LayerNorm.weight"),  # in files of 2018 and 2019
    (r"\bLayerNorm\.beta$", "LayerNorm.bias"),
)


def to_theirs(name: str, family: str) -> str:
    """Return the name that ``transformers`` gives to a parameter of ours.

    Args:
        name: Our name, whole, such as ``bert.pooler.dense.weight``.
        family: Family whose names are wanted.
    """
    return _first_fit(name, _rules(family)[0])


def to_ours(name: str, family: str) -> str:
    """Return our name for a parameter of ``transformers``.

    Args:
        name: Their whole name. Names of a bare encoder (``AutoModel``), without a prefix such as ``bert.``, are
            understood as well.
        family: Family that the name is from.
    """
    for pattern, replacement in OLD_NAMES:
        name = re.sub(pattern, replacement, name)
    # A bare encoder's names get the prefix that the names of a whole model have.
    return _first_fit(BARE_NAMES.sub(f"{PREFIXES.get(family, family)}.", name), _rules(family)[1])


Rules = tuple[tuple[re.Pattern[str], str], ...]
"""Pattern of a name, and its replacement."""


@lru_cache
def _rules(family: str) -> tuple[Rules, Rules]:
    """Compile a family's pairs, to their names and to ours."""
    pairs = KEY_MAPS[family]
    return tuple((_pattern(a), _template(b)) for a, b in pairs), tuple((_pattern(b), _template(a)) for a, b in pairs)


def _pattern(side: str) -> re.Pattern[str]:
    """Compile one side of a pair: ``#`` is a group of digits, ``*`` a group of anything."""
    return re.compile(re.escape(side).replace(r"\#", r"(\d+)").replace(r"\*", "(.+)"))


def _template(side: str) -> str:
    """Turn one side of a pair into a replacement: its n-th ``#`` or ``*`` is the n-th group of the other side."""
    count = iter(range(1, 10))
    return re.sub(r"[#*]", lambda _: rf"\{next(count)}", side)


def _first_fit(name: str, rules: Rules) -> str:
    """Rename by the first rule that fits the whole name; without one it stays."""
    for pattern, template in rules:
        if match := pattern.fullmatch(name):
            return match.expand(template)
    return name
