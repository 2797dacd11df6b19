"""The encoder's shape, with the field names of Hugging Face's ``config.json``."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.dataclasses import dataclass

from megabert.settings.config.families import FAMILIES, Family, FamilyName
from megabert.settings.config.fields import STRICT, Epsilon, refuse
from megabert.settings.config.names import given_fields

DecayRate = Annotated[float, Field(ge=0, lt=1)]
"""Share of a running mean that a step keeps."""
Probability = Annotated[float, Field(ge=0, lt=1)]
PositionScore = Literal["c2p", "p2c"]
# Sizes far above any model's: a number beyond them is damage, which would otherwise end in a lack of memory or time.
Layers = Annotated[int, Field(ge=1, le=1024)]
Width = Annotated[int, Field(ge=1, le=1 << 20)]
Positions = Annotated[int, Field(ge=2, le=1 << 20)]
Pieces = Annotated[int, Field(ge=1, le=1 << 24)]
Rows = Annotated[int, Field(ge=0, le=1 << 16)]
Window = Annotated[int, Field(le=1 << 20)]
RotaryBase = Annotated[float, Field(lt=1e12)]

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


OWN_FIELDS = sorted({name for family in FAMILIES.values() for name in family.own_fields})
"""Fields that only some families may set."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelConfig:
    """The encoder's family and sizes, with the field names of Hugging Face's ``config.json``."""

    family: FamilyName = "bert"
    """Architecture; it also sets the defaults that are usual for the family (docs/families)."""
    preset: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = None
    """Sets layers, width, heads and feed-forward width at once; a size that is given as well overrides it."""
    vocab_size: Pieces | Literal["auto"] = "auto"
    """Number of pieces in the tokenizer's vocabulary; auto takes it from the shards, or from the imported model."""
    embedding_size: Width | None = None
    """Width of the embeddings (ALBERT: 128). Where it differs from ``hidden_size`` a dense layer projects them; none
    means ``hidden_size``."""
    hidden_size: Width = 768
    """Width of a token's hidden state."""
    num_hidden_layers: Layers = 12
    """Number of transformer layers."""
    num_hidden_groups: Layers | None = None
    """How many layers have weights of their own. Each set of weights is shared by equally many consecutive layers
    (ALBERT: 1 set for all); none means that no layer shares."""
    generator_size: Annotated[float, Field(gt=0, le=1)] | None = None
    """ELECTRA and DeBERTa 3 only: width, feed-forward width and heads of the generator, as a share of the
    discriminator's (ELECTRA-Small: 0.25, DeBERTa 3: 1). none trains a generator alone, that is, a masked LM."""
    generator_layers: Layers | None = None
    """ELECTRA and DeBERTa 3 only: number of the generator's layers (DeBERTa 3: half of the discriminator's); none takes
    the discriminator's number."""
    embedding_sharing: Literal["disentangled", "shared", "separate"] | None = None
    """DeBERTa 3 only: how the two models share word embeddings. shared is one table, which both train;
    separate is two; disentangled is the generator's table, which the discriminator does not train, plus a difference,
    which it does (He et al. 2023, section 3.3)."""
    enhanced_mask_decoder: bool = False
    """DeBERTa 3 only: the masked LM reads absolute positions in its last layer, which is applied twice (He et al. 2021,
    section 3.2)."""
    num_attention_heads: Width = 12
    """Number of attention heads; it must divide ``hidden_size``."""
    intermediate_size: Width = 3072
    """Width of the feed-forward layer."""
    hidden_act: Literal["gelu", "gelu_new"] = "gelu"
    """Activation of the feed-forward layer: gelu is the erf form, gelu_new its tanh approximation (Hendrycks & Gimpel
    2016)."""
    hidden_dropout_prob: Probability = 0.1
    """Dropout probability after embeddings, attention output and feed-forward output; in a ModernBERT, which has fields
    for the other two, after attention output alone."""
    attention_probs_dropout_prob: Probability = 0.1
    """Dropout probability of attention's probabilities."""
    max_position_embeddings: Positions = 512
    """Length in tokens of the longest sequence that the model has positions for."""
    type_vocab_size: Rows = 2
    """Number of segment embeddings: 2 for A and B, 1 without segments (RoBERTa), 0 if there is no
    embedding for them either (DeBERTa, ModernBERT)."""
    pos_att_type: tuple[PositionScore, ...] = ()
    """DeBERTa only: which scores attention adds to those between contents: c2p between content and relative position,
    p2c between relative position and content."""
    max_relative_positions: Width | None = None
    """DeBERTa only: greater distances are treated as this one; none means ``max_position_embeddings``."""
    position_biased_input: bool = True
    """Add embeddings of absolute positions to the input (DeBERTa and ModernBERT do not)."""
    position_buckets: Width | None = None
    """DeBERTa 2 only: number of relative positions to each side. Distances up to half of it have one each, greater ones
    share the others in logarithmic steps; none gives every distance its own."""
    share_att_key: bool = False
    """DeBERTa 2 only: project relative positions with the weights of queries and keys instead of their own."""
    norm_rel_ebd: Literal["none", "layer_norm"] = "none"
    """DeBERTa 2 only: whether a LayerNorm follows the embeddings of relative positions."""
    conv_kernel_size: Width | None = None
    """DeBERTa 2 only: width in tokens, an odd number, of a convolution parallel to the first layer (xlarge: 3); none
    leaves it out."""
    conv_act: Literal["tanh", "gelu", "gelu_new"] = "tanh"
    """DeBERTa 2 only: activation of the convolution (xlarge: gelu)."""
    local_attention: Window = 128
    """ModernBERT only: window of local attention in tokens, an even number: each token sees half of it to either side,
    and itself."""
    global_attn_every_n_layers: Layers = 3
    """ModernBERT only: the first layer and every n-th after it attend to the whole sequence, the others locally."""
    global_rope_theta: RotaryBase = 160_000.0
    """ModernBERT only: base of the rotary positions in layers with global attention. The larger it is, the slower the
    slowest pairs turn, and the longer the sequences whose positions differ."""
    local_rope_theta: RotaryBase = 10_000.0
    """ModernBERT only: base of the rotary positions in layers with local attention."""
    embedding_dropout: Probability = 0.0
    """ModernBERT only: dropout probability after the embeddings."""
    mlp_dropout: Probability = 0.0
    """ModernBERT only: dropout probability within the feed-forward layer, before its second matrix."""
    classifier_pooling: Literal["cls", "mean"] = "cls"
    """ModernBERT only: input of a classifier: the first token of a sequence, or the mean of all, as in the published
    ModernBERTs. Masked LMs without a sentence objective train nothing at the first token in particular."""
    initializer_range: Epsilon = 0.02
    """Standard deviation of the truncated normal distribution that weights are initialised from."""
    layer_norm_eps: Epsilon = 1e-12
    """Constant that LayerNorm adds to the variance."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, values: Any) -> Any:
        given = given_fields(values)
        if given is None:
            return values
        family = FAMILIES.get(str(given.get("family")), FAMILIES["bert"])
        preset = str(given.get("preset"))
        return {**family.defaults, **PRESETS.get(preset, {}), **family.presets.get(preset, {}), **given}

    @field_validator("pos_att_type")
    @classmethod
    def _position_scores_are_a_set(cls, value: tuple[PositionScore, ...]) -> tuple[PositionScore, ...]:
        if len(set(value)) < len(value):
            raise ValueError(f"{value} names one twice; name c2p, p2c or both")
        return tuple(sorted(value))

    @model_validator(mode="after")
    def _fits_together(self) -> "ModelConfig":
        refuse(self._contradictory_sizes(), self._fields_of_other_families(), self._contradictory_positions())
        return self

    def _contradictory_sizes(self) -> Iterator[str]:
        hidden, layers = self.hidden_size, self.num_hidden_layers
        if hidden % self.num_attention_heads:
            divisor = f"choose a divisor, such as {max(1, hidden // 64)}"
            yield f"num_attention_heads={self.num_attention_heads} does not divide hidden_size={hidden}; {divisor}"
        if layers % (self.num_hidden_groups or 1):
            divisor = "choose a divisor, 1 for one layer used again and again"
            yield f"num_hidden_groups={self.num_hidden_groups} does not divide num_hidden_layers={layers}; {divisor}"
        for name in () if self.traits.has_discriminator else ("generator_size", "generator_layers"):
            value, families = getattr(self, name), "electra, deberta-v3"
            if value is not None:
                yield f"{name}={value} goes with family={families}, not {self.family}; leave it out"
        if self.generator_size is not None:
            self.generator()
            if self.embedding_sharing is None and "embedding_sharing" in self.traits.own_fields:
                ways = "which shares words at most; name disentangled, shared or separate"
                yield f"embedding_sharing is none, but family={self.family}, {ways}"

    def _fields_of_other_families(self) -> Iterator[str]:
        allowed = self.traits.own_fields
        for name in [name for name in OWN_FIELDS if name not in allowed]:
            value = getattr(self, name)
            if value != self.traits.defaults.get(name, getattr(type(self), name)):
                families = ", ".join(key for key, family in FAMILIES.items() if name in family.own_fields)
                yield f"{name}={value} goes with family={families}, not {self.family}; leave it out"
        if (self.conv_kernel_size or 1) % 2 == 0:
            yield f"conv_kernel_size={self.conv_kernel_size} has no middle; choose an odd number, such as 3"
        is_narrow = self.embedding_width != self.hidden_size and not self.traits.norm_after_projection
        if allowed and (is_narrow or self.num_hidden_groups):
            fields = f"embedding_size={self.embedding_size} or num_hidden_groups={self.num_hidden_groups}"
            yield f"{fields} does not go with family={self.family}; leave both out"
        if "pos_att_type" in allowed and not self.pos_att_type:
            yield f"pos_att_type is empty, but family={self.family} has no other positions; name c2p or p2c"
        if self.type_vocab_size == 0 and not allowed:
            families = ", ".join(key for key, family in FAMILIES.items() if family.own_fields)
            yield f"type_vocab_size=0 goes with family={families}, not {self.family}; 1 means no segments"

    def _contradictory_positions(self) -> Iterator[str]:
        if self.position_buckets == 1:
            yield "position_buckets=1 has no half; choose an even number, such as 256"
        half, farthest = (self.position_buckets or 0) // 2, self.max_relative_positions
        # The distances beyond half of the buckets share the other half, so there have to be some.
        if half and farthest is not None and farthest < half + 2 <= self.max_position_embeddings:
            fields = f"max_relative_positions={farthest} with position_buckets={self.position_buckets}"
            yield f"{fields}: no distance is left for the second half; take {half + 2} or more, or leave one out"
        if not self.traits.is_pre_norm:
            return
        if self.local_attention < 2 or self.local_attention % 2:
            halves = "cannot be halved into tokens to the left and to the right; choose an even number, such as 128"
            yield f"local_attention={self.local_attention} {halves}"
        for name, usual in (("global_rope_theta", 160_000), ("local_rope_theta", 10_000)):
            base = getattr(self, name)
            if not 1 < base < 1e12:
                yield f"{name}={base:g} is no base of rotary positions; choose a number above 1, such as {usual}"
        if self.head_width % 2:
            heads = f"num_attention_heads={self.num_attention_heads} makes heads {self.head_width} wide"
            yield f"{heads}, but rotary positions turn pairs; choose heads of an even width"
        if self.type_vocab_size:
            yield f"type_vocab_size={self.type_vocab_size}, but family={self.family} has no segments; leave it out"

    def generator(self) -> "ModelConfig":
        """Return the shape of the generator: a share of the discriminator's width, as deep unless stated."""
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
            generator_layers=None,
            num_hidden_layers=self.generator_layers or self.num_hidden_layers,
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
    def model_type(self) -> str:
        """What ``config.json`` calls the family."""
        return self.traits.model_type or self.family

    @property
    def embedding_width(self) -> int:
        """Width E of the embeddings."""
        return self.embedding_size or self.hidden_size

    def stated(self, name: str) -> Any:
        """Return the value of a field, or the number that a run leaves out and its export states."""
        groups = self.num_hidden_groups or self.num_hidden_layers
        left_out = {"embedding_size": self.embedding_width, "num_hidden_groups": groups}
        return left_out.get(name, getattr(self, name))

    @property
    def projects_embeddings(self) -> bool:
        """Whether a dense layer connects embeddings and encoder."""
        return self.traits.always_projects or self.embedding_width != self.hidden_size

    @property
    def layer_passes(self) -> int:
        """How often a layer is applied in the forward pass: the enhanced mask decoder applies the last one twice."""
        return self.num_hidden_layers + (self.enhanced_mask_decoder and self.generator_size is None)

    def with_pieces(self, pieces: int) -> "ModelConfig":
        """Return the shape for a tokenizer of so many pieces: they are the vocabulary unless it is stated."""
        return replace(self, vocab_size=pieces) if self.vocab_size == "auto" else self

    def fits_pieces(self, pieces: int) -> bool:
        """Whether a tokenizer of so many pieces can be the model's."""
        return self.vocab_size == "auto" or 0 <= self.vocab_size - pieces <= self.traits.max_spare_rows

    @property
    def relative_span(self) -> int:
        """How many relative positions to each side have an embedding."""
        return self.position_buckets or self.max_distance

    @property
    def max_distance(self) -> int:
        """The greatest distance between two tokens that has a relative position of its own."""
        return self.max_relative_positions or self.max_position_embeddings

    @property
    def attention_kind(self) -> Literal["dense", "disentangled", "windowed"]:
        """Which ops attention is made of: BERT's, DeBERTa's, or ModernBERT's."""
        return "disentangled" if self.pos_att_type else "windowed" if self.traits.is_pre_norm else "dense"

    @property
    def reach(self) -> int:
        """How many tokens to each side local attention sees."""
        return self.local_attention // 2

    def is_global(self, depth: int) -> bool:
        """Whether a layer, counted from 0, attends to the whole sequence."""
        return not self.traits.is_pre_norm or depth % self.global_attn_every_n_layers == 0

    @property
    def local_layers(self) -> int:
        """Number of layers with local attention."""
        return sum(not self.is_global(depth) for depth in range(self.num_hidden_layers))

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
