"""A phase of pre-training: one sequence length with its own data, batch and schedule."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.dataclasses import dataclass

from megabert.foundation.errors import ConfigError
from megabert.settings.config import fields

DataStart = Literal["continue", "beginning"]
NewPositions = Literal["keep", "tile"]
Share = Annotated[float, Field(ge=0, le=1)]
MaskedShare = Annotated[float, Field(gt=0, lt=1)]


Tokens = Annotated[int, Field(ge=1, le=10**15)]


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class PhaseConfig:
    """One sequence length with its own data, batch and schedule."""

    name: str | None = None
    """Name of the phase in logs; by default ``phase1``, ``phase2``, ..."""
    data: str | None = None
    """Folder or URL of instance shards; by default ``data.path/instances/max_seq_length``."""
    mixture: dict[fields.SourceName, fields.Weight] | None = None
    """Share of the tokens that each of ``data.sources`` has in this phase; they need not add up to 1, and a source of 0
    is not read. By default all sources are read once per epoch, by their size."""
    temperature: Share | None = None
    """Shares that are proportional to the tokens of the sources to this power, in place of ``mixture``: 1 is by size, 0
    gives all sources the same share (0.7, 0.5 and 0.3 in mmBERT: Marone et al. 2025)."""
    data_start: DataStart = "continue"
    """Where the phase begins in shards that an earlier phase has read: continue after the last instance that was read,
    so that none comes twice before all have come once, or beginning, the order's first instance again. The
    loader then draws the masks of the earlier phase again, unless the phase has shares of its own."""
    max_seq_length: fields.SequenceLength = 128
    """Length of the longest instance in tokens."""
    masked_lm_prob: MaskedShare | None = None
    """Share of an instance's tokens that is predicted, where the loader draws the masks; by default the shards' own.
    Their ``max_predictions_per_seq`` is scaled with it. The held-out split keeps the shards' masks."""
    final_masked_lm_prob: MaskedShare | None = None
    """Share in the phase's last batch, which ``masked_lm_prob`` reaches in a line; by default it stays."""
    masked_lm_range: tuple[MaskedShare, MaskedShare] | None = None
    """Least and greatest share, in place of ``masked_lm_prob``: each instance draws its own between them, a new one in
    each epoch, as in masked diffusion (Sahoo et al. 2024)."""
    masked_lm_weight: Literal["equal", "inverse_share"] = "equal"
    """Weight of a masked position in the loss: equal, or one over the share of its instance's tokens that is masked,
    the 1/t of masked diffusion (Sahoo et al. 2024; Nie et al. 2025, equation 3). The sum is then divided by the batch's
    tokens. It goes with ``masked_lm_range``; the held-out loss stays unweighted."""
    masked_lm_rarity: Annotated[float, Field(gt=0, le=1)] | None = None
    """How much more often rare pieces are masked than frequent ones, where the loader draws the masks: the next word is
    drawn by weights that fall with this power of its pieces' counts in the shards, 0.5 in Zhang et al. (2023). The
    number of masked tokens stays the same; by default all words are alike."""
    mask_actions: tuple[Share, Share, Share] | None = None
    """Shares of the predicted tokens that are shown as [MASK], as a random piece, and as they are, where the loader
    draws the masks; by default 0.8, 0.1 and 0.1 (Devlin et al. 2019), which the held-out split keeps."""
    global_rope_theta: Annotated[float, Field(gt=1, lt=1e12)] | None = None
    """ModernBERT only: base of the rotary positions of global attention in this phase, by default
    ``model.global_rope_theta``. Short sequences are trained with a smaller base than the long ones after them (10,000,
    then 160,000: Warner et al. 2024)."""
    replaced_tokens: bool = True
    """ELECTRA and DeBERTa 3 only: whether the discriminator learns to find replaced tokens. In a phase without, it is a
    masked LM like the generator, whose head it uses: the two have to be as wide. It helps a start with little text,
    since a discriminator from random weights finds nothing for long (docs/families/index.md)."""
    new_positions: NewPositions = "keep"
    """First values of the rows of the position table that no earlier phase has reached, since its instances were
    shorter: keep leaves them as they are, untrained; tile repeats the trained rows, except for the first one, which is
    [CLS]'s, and the last one. With ``init_from`` no row is new."""
    position_offset: Literal["none", "random"] = "none"
    """Positions of an instance: none counts them from 0; random shifts all but the first, [CLS]'s, by a number drawn
    for each instance and epoch, so that short instances train all ``model.max_position_embeddings`` rows of the table.
    The held-out split is never shifted."""
    steps: fields.Count | None = None
    """Number of optimizer updates in this phase, unless ``tokens`` says how long it is."""
    tokens: Tokens | None = None
    """Tokens to train on in this phase, in place of ``steps``: the number of steps follows from the mean length of
    the shards' instances. The run records these steps."""
    global_batch_size: fields.Instances
    """Instances that a step trains on, over all ranks; any positive number."""
    initial_batch_size: fields.Instances | None = None
    """Instances of the phase's first step, from which the batch grows in a line to ``global_batch_size``; by default
    all steps are equal."""
    batch_warmup_steps: fields.Count | None = None
    """Number of batches, skipped ones included, over which it grows."""
    batch_warmup_tokens: Tokens | None = None
    """Tokens over which it grows, in place of ``batch_warmup_steps``. The run records these batches."""
    learning_rate: fields.Rate
    """Learning rate at the end of the warm-up, its highest value."""
    warmup_ratio: Share = 0.0
    """Share of the phase's steps during which the learning rate rises linearly from 0; a phase that warms up for all of
    its steps ends at the highest rate."""
    decay: Literal["polynomial", "linear", "cosine", "one_minus_sqrt", "constant"] = "polynomial"
    """How the learning rate falls to ``final_learning_rate`` at the end of the phase: by a polynomial, in a line, along
    half a cosine, as one minus a square root (Haegele et al. 2024), or, if constant, not at all."""
    decay_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the phase's steps, its last ones, during which the learning rate falls; between warm-up and decay it
    stays at its highest value. By default the decay begins where the warm-up ends; a polynomial is then counted from
    the phase's first step, as in NVIDIA's recipe, so that the rate drops at the end of the warm-up."""
    decay_power: fields.Rate | None = None
    """Exponent of the polynomial decay: 1 is linear and the default, 0.5 is NVIDIA's LAMB recipe. Other decays have
    none."""
    final_learning_rate: fields.Weight = 0.0
    """Learning rate of the phase's last step, where it decays."""

    @property
    def num_steps(self) -> int:
        """Number of updates; known from the beginning, or once the shards have been read (`with_steps`)."""
        assert self.steps is not None, "the steps of a phase follow from its tokens: call with_steps first"
        return self.steps

    @property
    def num_instances(self) -> int:
        """Instances of all steps, if no batch is skipped."""
        return self.instances_of(self.num_steps)

    def numbers_of(self, batch: int) -> range:
        """Return the numbers that the instances of a batch have within this phase, from 0.

        Args:
            batch: Number of the batch within the phase, from 0. Batches that were skipped count.
        """
        return range(self.instances_of(batch), self.instances_of(batch + 1))

    def batch_size(self, batch: int) -> int:
        """Return the instances of a batch of this phase.

        From ``a`` to ``b`` over ``n`` batches, batch ``i < n`` has ``a + (b - a) * i // n``: whole numbers alone, so
        that every rank and every resume gets the same.

        Args:
            batch: Number of the batch within the phase, from 0. Batches that were skipped count.
        """
        return len(self.numbers_of(batch))

    @property
    def most_masked(self) -> float | None:
        """Greatest share of an instance's tokens that is predicted in this phase; None leaves it to the shards."""
        shares = (self.masked_lm_prob, self.final_masked_lm_prob, *(self.masked_lm_range or ()))
        return max((share for share in shares if share is not None), default=None)

    @property
    def mean_masked(self) -> float | None:
        """Share of the tokens that is predicted in this phase, on average; None leaves it to the shards."""
        first, last = self.masked_lm_range or (self.masked_lm_prob, self.final_masked_lm_prob)
        return first if first is None or last is None else (first + last) / 2

    def masked_share(self, batch: int) -> float | None:
        """Return the share that is predicted in a batch of this phase, on average if each instance draws its own.

        Args:
            batch: Number of the batch within the phase, from 0. Batches that were skipped count.
        """
        if self.masked_lm_range is not None:
            return self.mean_masked
        first, last = self.masked_lm_prob, self.final_masked_lm_prob
        if first is None or last is None:
            return first
        return first + (last - first) * min(batch, self.num_steps - 1) / max(1, self.num_steps - 1)

    def describe_masks(self) -> str:
        """Say which share of the tokens the loader masks, and which pieces; empty if both are the shards'."""
        share = self._describe_share()
        if self.masked_lm_rarity is None:
            return share
        share = share or "as many tokens masked as the shards say"
        return f"{share}, rare pieces more often (exponent {self.masked_lm_rarity:g})"

    def _describe_share(self) -> str:
        first, last, span = self.masked_lm_prob, self.final_masked_lm_prob, self.masked_lm_range
        if span is not None:
            weighted = ", weighted by one over it" if self.masked_lm_weight == "inverse_share" else ""
            return f"{span[0]:.1%} to {span[1]:.1%} of the tokens masked, drawn for each instance{weighted}"
        if first is None:
            return ""
        return f"{first:.1%} of the tokens masked" + ("" if last is None else f" at first, {last:.1%} at last")

    def instances_of(self, batches: int) -> int:
        """Return the instances of the phase's first batches."""
        first, ramp = self.initial_batch_size, self.batch_warmup_steps
        if first is None or ramp is None:
            return batches * self.global_batch_size
        growing = min(batches, ramp)
        rising = first * growing + _sum_of_floors(growing, self.global_batch_size - first, ramp)
        return rising + (batches - growing) * self.global_batch_size

    def with_steps(self, *, rows: int, tokens: int) -> "PhaseConfig":
        """Return the phase with numbers of steps in place of numbers of tokens.

        Args:
            rows: Instances of the phase's shards.
            tokens: Tokens of these instances.

        Raises:
            ConfigError: They are more steps than a phase may have.
        """
        phase = self
        if phase.batch_warmup_tokens is not None:
            instances = phase.batch_warmup_tokens * rows / tokens
            mean = ((phase.initial_batch_size or 0) + phase.global_batch_size) / 2
            ramp = _at_most_a_count(max(1, round(instances / mean)), "batch_warmup_tokens", phase.batch_warmup_tokens)
            phase = replace(phase, batch_warmup_tokens=None, batch_warmup_steps=ramp)
        if phase.tokens is not None:
            steps = phase._batches_with(-(-phase.tokens * rows // tokens))
            phase = replace(phase, tokens=None, steps=_at_most_a_count(steps, "tokens", phase.tokens))
        return phase

    def _batches_with(self, instances: int) -> int:
        """Return the smallest number of batches that hold so many instances."""
        ramp = self.batch_warmup_steps or 0
        missing = instances - self.instances_of(ramp)
        if missing > 0:
            return ramp + -(-missing // self.global_batch_size)
        return bisect_left(range(ramp), instances, key=self.instances_of)

    @field_validator("mask_actions")
    @classmethod
    def _actions_add_up(cls, value: tuple[float, float, float] | None) -> tuple[float, float, float] | None:
        if value is not None and abs(sum(value) - 1) > 1e-6:
            raise ValueError(f"{value} add up to {sum(value):g}; name three shares that add up to 1")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> "PhaseConfig":
        fields.refuse(
            self._contradictory_lengths(),
            self._contradictory_rates(),
            self._contradictory_masks(),
            self._contradictory_shares(),
        )
        return self

    def _contradictory_shares(self) -> Iterator[str]:
        if self.mixture is not None and not any(self.mixture.values()):
            yield f"mixture={self.mixture} reads no source; give one a share above 0"
        if self.mixture is not None and self.temperature is not None:
            yield f"mixture={self.mixture} and temperature={self.temperature}; a phase has one of the two at most"

    def _contradictory_lengths(self) -> Iterator[str]:
        first, whole = self.initial_batch_size, self.global_batch_size
        ramps = (self.batch_warmup_steps, self.batch_warmup_tokens)
        if (self.steps is None) == (self.tokens is None):
            yield f"steps={self.steps} and tokens={self.tokens}; a phase has one of the two"
        if (first is None) != (ramps == (None, None)) or None not in ramps:
            given = f"initial_batch_size={first}, batch_warmup_steps={ramps[0]}, batch_warmup_tokens={ramps[1]}"
            yield f"{given}; a batch that grows has the first and one of the others"
        if first is not None and first >= whole:
            given = f"initial_batch_size={first} is not below global_batch_size={whole}"
            yield f"{given}, but the batch grows; lower it, or leave it out"

    def _contradictory_rates(self) -> Iterator[str]:
        final, highest = f"final_learning_rate={self.final_learning_rate:g}", f"learning_rate={self.learning_rate:g}"
        if self.final_learning_rate > self.learning_rate:
            yield f"{final} is above {highest}, but the rate falls; lower it"
        if self.decay == "constant" and (self.decay_ratio or self.final_learning_rate):
            given = f"decay_ratio={self.decay_ratio} and {final} mean nothing"
            yield f"decay=constant does not fall, so that {given}; leave them out, or choose another decay"
        if self.decay != "polynomial" and self.decay_power is not None:
            yield f"decay_power={self.decay_power:g} goes with decay=polynomial, not {self.decay}; leave it out"
        if self.warmup_ratio == 1 and self.final_learning_rate:
            remedy = "leave it out, or warm up for a smaller share"
            yield f"warmup_ratio=1 ends at the highest rate, so that {final} means nothing; {remedy}"
        shares = self.warmup_ratio + (self.decay_ratio or 0)
        if shares > 1 + 1e-9:  # sums of decimal fractions are a little off
            given = f"warmup_ratio={self.warmup_ratio} and decay_ratio={self.decay_ratio}"
            yield f"{given} are {shares:g} of the phase; together they are 1 at most"

    def _contradictory_masks(self) -> Iterator[str]:
        first, last, span = self.masked_lm_prob, self.final_masked_lm_prob, self.masked_lm_range
        if span is not None and (first is not None or last is not None):
            given = f"masked_lm_prob={first} and final_masked_lm_prob={last}"
            yield f"masked_lm_range={span} is in place of {given}; leave out one or the other"
        if span is not None and span[0] >= span[1]:
            yield f"masked_lm_range={span} begins with the greater share; name the smaller one first"
        if span is None and self.masked_lm_weight != "equal":
            why = "weighs instances of different shares, and needs masked_lm_range"
            yield f"masked_lm_weight={self.masked_lm_weight} {why}; name a range, such as [0.1, 0.9], or leave it out"
        if first is None and last is not None:
            yield f"final_masked_lm_prob={last} says where masked_lm_prob ends; name masked_lm_prob as well"


def _at_most_a_count(batches: int, name: str, tokens: int) -> int:
    """Return a number of batches that follows from a number of tokens, if a phase may have so many."""
    if batches > fields.MAX_COUNT:
        raise ConfigError(
            f"{name}={tokens:,} take {batches:,} batches of these shards; {fields.MAX_COUNT:,} are allowed. Name fewer "
            "tokens, or raise global_batch_size."
        )
    return batches


def _sum_of_floors(count: int, factor: int, divisor: int) -> int:
    """Return the sum of ``factor * i // divisor`` over ``i < count``.

    It is the number of grid points under a line, which Euclid's algorithm counts in logarithmic time: whole rows first,
    then with the axes exchanged, where the line is as steep as the divisor over the factor's remainder.
    """
    total, offset = 0, 0
    while count > 0:
        total += count * (count - 1) // 2 * (factor // divisor) + count * (offset // divisor)
        factor, offset = factor % divisor, offset % divisor
        highest = factor * count + offset
        count, offset = highest // divisor, highest % divisor
        factor, divisor = divisor, factor
        if divisor == 0:
            break
    return total
