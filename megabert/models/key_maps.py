"""Names of parameters here and in ``transformers``, family by family, as data.

A pair is (ours, theirs); ``#`` stands for a number and ``*`` for any rest, the same on both sides. The first pair that
fits a whole name renames it, in either direction; a name that no pair fits is the same on both sides.
"""

import re
from functools import lru_cache

Pairs = tuple[tuple[str, str], ...]


def _encoder(prefix: str) -> Pairs:
    """Layers as BERT names them: only the biases that our ops add sit in other modules."""
    layer = f"{prefix}.encoder.layer.#"
    return (
        ("bert.encoder.layer.#.attention.output.LayerNorm.dense_bias", f"{layer}.attention.output.dense.bias"),
        ("bert.encoder.layer.#.output.LayerNorm.dense_bias", f"{layer}.output.dense.bias"),
        ("bert.encoder.layer.#.intermediate.activation.bias", f"{layer}.intermediate.dense.bias"),
        ("bert.*", f"{prefix}.*"),
    )


def _transform(head: str, layer_norm: str = "LayerNorm") -> Pairs:
    """Return the names of the masked-LM head's dense layer and LayerNorm."""
    return (
        ("cls.predictions.transform.activation.bias", f"{head}.dense.bias"),
        ("cls.predictions.transform.dense.*", f"{head}.dense.*"),
        ("cls.predictions.transform.LayerNorm.*", f"{head}.{layer_norm}.*"),
    )


def _decoder(head: str) -> Pairs:
    """Return the names of a decoder whose bias lies beside it; files may hold it twice."""
    return (("cls.predictions.decoder.bias", f"{head}.bias"), ("cls.predictions.decoder.*", f"{head}.decoder.*"))


_ALBERT = "albert.encoder.albert_layer_groups.#.albert_layers.0"

_DEBERTA: Pairs = (
    ("bert.pooler.*", "pooler.*"),  # of a task's class, not of the encoder
    ("bert.encoder.relative.weight", "deberta.encoder.rel_embeddings.weight"),
    ("bert.encoder.relative.LayerNorm.*", "deberta.encoder.LayerNorm.*"),
    ("bert.encoder.convolution.LayerNorm.*", "deberta.encoder.conv.LayerNorm.*"),
    ("bert.encoder.convolution.*", "deberta.encoder.conv.conv.*"),
    *_encoder("deberta"),
    *_transform("cls.predictions.transform"),
    *_decoder("cls.predictions"),
    # the authors' own files, and transformers where config.json says legacy: false
    *_transform("lm_predictions.lm_head"),
    *_decoder("lm_predictions.lm_head"),
)
_DEBERTA_SELF = "deberta.encoder.layer.#.attention.self"

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
    "deberta-v2": (
        ("bert.encoder.layer.#.attention.self.query.*", f"{_DEBERTA_SELF}.query_proj.*"),
        ("bert.encoder.layer.#.attention.self.key.*", f"{_DEBERTA_SELF}.key_proj.*"),
        ("bert.encoder.layer.#.attention.self.value.*", f"{_DEBERTA_SELF}.value_proj.*"),
        ("bert.encoder.layer.#.attention.self.position_key.*", f"{_DEBERTA_SELF}.pos_key_proj.*"),
        ("bert.encoder.layer.#.attention.self.position_query.*", f"{_DEBERTA_SELF}.pos_query_proj.*"),
        *_DEBERTA,
    ),
}
"""By family."""

OLD_NAMES = (
    (r"\bLayerNorm\.gamma$", "LayerNorm.weight"),  # files of 2018 and 2019
    (r"\bLayerNorm\.beta$", "LayerNorm.bias"),
)


def to_theirs(name: str, family: str) -> str:
    """Return the name that ``transformers`` gives a parameter of ours."""
    return _first_fit(name, _rules(family)[0])


def to_ours(name: str, family: str) -> str:
    """Return our name of a parameter of ``transformers``, of a bare encoder without its prefix too."""
    for pattern, replacement in OLD_NAMES:
        name = re.sub(pattern, replacement, name)
    return _first_fit(
        re.sub(r"^(?=(embeddings|embeddings_project|encoder|pooler)\.)", f"{family.partition('-')[0]}.", name),
        _rules(family)[1],
    )


Rules = tuple[tuple[re.Pattern[str], str], ...]


@lru_cache
def _rules(family: str) -> tuple[Rules, Rules]:
    """Compile a family's pairs for both directions."""
    pairs = KEY_MAPS[family]
    return tuple((_pattern(a), _template(b)) for a, b in pairs), tuple((_pattern(b), _template(a)) for a, b in pairs)


def _pattern(side: str) -> re.Pattern[str]:
    return re.compile(re.escape(side).replace(r"\#", r"(\d+)").replace(r"\*", "(.+)"))


def _template(side: str) -> str:
    """Return a replacement whose groups are numbered from left to right, as in every pair's other side."""
    count = iter(range(1, 10))
    return re.sub(r"[#*]", lambda _: rf"\{next(count)}", side)


def _first_fit(name: str, rules: Rules) -> str:
    for pattern, template in rules:
        if found := pattern.fullmatch(name):
            return found.expand(template)
    return name
