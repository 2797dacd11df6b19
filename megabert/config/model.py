"""The encoder's shape, with the field names of Hugging Face's ``config.json``."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator
from pydantic.dataclasses import dataclass

from megabert.config.families import FAMILIES, Family, FamilyName
from megabert.config.strict import STRICT

Probability = Annotated[float, Field(ge=0, lt=1)]
PositionScore = Literal["c2p", "p2c"]

# Layers and width: Turc et al. 2019 (tiny to medium), Devlin et al. 2019 (base, large); heads are 64 wide.
PRESETS: dict[str, dict[str, int]] = {
    name: {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
    }
    for name, layers, hidden in [
        ("tiny", 2, 128),
        ("mini", 4, 256),
        ("small", 4, 512),
        ("medium", 8, 512),
        ("base", 12, 768),
        ("large", 24, 1024),
    ]
}


RELATIVE_FIELDS = sorted({name for family in FAMILIES.values() for name in family.relative_fields})
"""Fields that only some families may set."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelConfig:
    """The encoder; sizes of 0 or less are refused."""

    family: FamilyName = "bert"
    """bert, roberta, albert, electra, deberta, deberta-v2; sets the defaults that are usual for it (docs/families)."""
    preset: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = None
    """Layers, width, heads and feed-forward width together; a size given beside it wins."""
    vocab_size: int | Literal["auto"] = "auto"
    """Pieces of the tokenizer; auto: the shards' (or the imported model's)."""
    embedding_size: PositiveInt | None = None
    """Width of the embeddings, projected to ``hidden_size`` where it differs (ALBERT: 128); none: ``hidden_size``."""
    hidden_size: PositiveInt = 768
    """Width of a token's hidden state."""
    num_hidden_layers: PositiveInt = 12
    """Transformer layers."""
    num_hidden_groups: PositiveInt | None = None
    """Layers with weights of their own, each used by as many neighbours as another (ALBERT: 1); none: all."""
    generator_size: Annotated[float, Field(gt=0, le=1)] | None = None
    """ELECTRA: width, feed-forward width and heads of the generator, as a share of the model's (ELECTRA-Small: 0.25).
    none: there is no discriminator; a model of the family is then a generator alone."""
    num_attention_heads: PositiveInt = 12
    """Attention heads; must divide ``hidden_size``."""
    intermediate_size: PositiveInt = 3072
    """Width of the feed-forward layer."""
    hidden_act: Literal["gelu", "gelu_new"] = "gelu"
    """Activation: gelu is the erf form, gelu_new its tanh approximation (Hendrycks & Gimpel 2016)."""
    hidden_dropout_prob: Probability = 0.1
    """Dropout after embeddings, attention output and feed-forward output."""
    attention_probs_dropout_prob: Probability = 0.1
    """Dropout of attention probabilities."""
    max_position_embeddings: Annotated[int, Field(ge=2)] = 512
    """Longest sequence that the model has positions for."""
    type_vocab_size: NonNegativeInt = 2
    """Segments A and B; 1: there are no segments (RoBERTa); 0: nor an embedding for them (DeBERTa)."""
    pos_att_type: tuple[PositionScore, ...] = ()
    """DeBERTa: what attention adds to the scores of contents; c2p: of content and relative position, p2c: the other
    way round."""
    max_relative_positions: PositiveInt | None = None
    """DeBERTa: distances beyond it count as it; none: ``max_position_embeddings``."""
    position_biased_input: bool = True
    """Whether embeddings of absolute positions are added to the input (DeBERTa: no)."""
    position_buckets: PositiveInt | None = None
    """DeBERTa 2: relative positions to each side; distances beyond its half share them in logarithmic steps. none:
    one position for each distance."""
    share_att_key: bool = False
    """DeBERTa 2: whether positions are projected with the queries' and keys' own weights."""
    norm_rel_ebd: Literal["none", "layer_norm"] = "none"
    """DeBERTa 2: whether a LayerNorm follows the embeddings of relative positions."""
    conv_kernel_size: PositiveInt | None = None
    """DeBERTa 2: tokens that a convolution beside the first layer reads, an odd number (xlarge: 3); none: no such."""
    conv_act: Literal["tanh", "gelu", "gelu_new"] = "tanh"
    """DeBERTa 2: the convolution's activation (xlarge: gelu)."""
    initializer_range: PositiveFloat = 0.02
    """Standard deviation of the truncated normal initialisation."""
    layer_norm_eps: PositiveFloat = 1e-12
    """Added to the variance inside LayerNorm."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, values: Any) -> Any:
        given = values if isinstance(values, dict) else dict(values.kwargs or {})
        family = FAMILIES.get(str(given.get("family")))
        return {**(family.defaults if family else {}), **PRESETS.get(given.get("preset") or "", {}), **given}

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ModelConfig":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} does not divide hidden_size={self.hidden_size}; "
                f"choose a divisor, such as {max(1, self.hidden_size // 64)}"
            )
        return self

    @model_validator(mode="after")
    def _groups_divide_layers(self) -> "ModelConfig":
        if self.num_hidden_layers % (self.num_hidden_groups or 1):
            raise ValueError(
                f"num_hidden_groups={self.num_hidden_groups} does not divide num_hidden_layers="
                f"{self.num_hidden_layers}; choose a divisor, 1 for one layer used again and again"
            )
        return self

    @model_validator(mode="after")
    def _generator_has_whole_sizes(self) -> "ModelConfig":
        if self.generator_size is not None:
            if self.family != "electra":
                raise ValueError(f"generator_size={self.generator_size} goes with family=electra, not {self.family}")
            self.generator()
        return self

    @field_validator("pos_att_type")
    @classmethod
    def _position_scores_are_a_set(cls, value: tuple[PositionScore, ...]) -> tuple[PositionScore, ...]:
        if len(set(value)) < len(value):
            raise ValueError(f"{value} names one twice; name c2p, p2c or both")
        return tuple(sorted(value))

    @model_validator(mode="after")
    def _relative_positions_fit_family(self) -> "ModelConfig":
        allowed = self.traits.relative_fields
        for name in RELATIVE_FIELDS:
            value = getattr(self, name)
            if name not in allowed and value != getattr(type(self), name):
                families = ", ".join(key for key, family in FAMILIES.items() if name in family.relative_fields)
                raise ValueError(f"{name}={value} goes with family={families}, not {self.family}")
        if (self.conv_kernel_size or 1) % 2 == 0:
            raise ValueError(f"conv_kernel_size={self.conv_kernel_size} has no middle; choose an odd number, such as 3")
        if allowed and (self.embedding_width != self.hidden_size or self.num_hidden_groups):
            raise ValueError(
                f"embedding_size={self.embedding_size} or num_hidden_groups={self.num_hidden_groups} goes not with "
                f"family={self.family}; leave both out"
            )
        if allowed and not self.pos_att_type:
            raise ValueError(f"pos_att_type is empty, but family={self.family} has no other positions; name c2p or p2c")
        if self.type_vocab_size == 0 and not allowed:
            raise ValueError(f"type_vocab_size=0 goes with deberta, not {self.family}; 1 means no segments")
        return self

    def generator(self) -> "ModelConfig":
        """Return the shape of ELECTRA's generator: as deep as the discriminator, a share of its width."""
        share = self.generator_size or 1.0
        hidden, heads = round(self.hidden_size * share), max(1, round(self.num_attention_heads * share))
        if hidden % heads:
            raise ValueError(
                f"generator_size={share} gives {heads} heads for a width of {hidden}; choose 1/2, 1/3 or 1/4"
            )
        return replace(
            self,
            preset=None,
            generator_size=None,
            embedding_size=self.embedding_width,
            hidden_size=hidden,
            num_attention_heads=heads,
            intermediate_size=round(self.intermediate_size * share),
        )

    @property
    def traits(self) -> Family:
        """How the family differs from BERT."""
        return FAMILIES[self.family]

    @property
    def embedding_width(self) -> int:
        """Width E of the embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def projects_embeddings(self) -> bool:
        """Whether a dense layer lies between embeddings and encoder."""
        return self.traits.always_projects or self.embedding_width != self.hidden_size

    def fits_pieces(self, pieces: int) -> bool:
        """Whether a tokenizer of so many pieces can be the model's."""
        return self.vocab_size == "auto" or 0 <= self.vocab_size - pieces <= self.traits.max_spare_rows

    @property
    def relative_span(self) -> int:
        """Relative positions to each side that have an embedding."""
        return self.position_buckets or self.max_distance

    @property
    def max_distance(self) -> int:
        """Distances beyond it have no relative position of their own."""
        return self.max_relative_positions or self.max_position_embeddings

    @property
    def head_width(self) -> int:
        """Width H of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def padded_vocab_size(self) -> int:
        """Vocabulary rounded up to a multiple of 64, for aligned matrix products; cut on export."""
        if self.vocab_size == "auto":
            raise ValueError("vocab_size is still 'auto': resolve it from the shards first")
        return -(-self.vocab_size // 64) * 64
