"""A phase of pre-training: one sequence length with its own data, batch and schedule."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from megabert.config.fields import STRICT

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PhaseConfig:
    """One sequence length with its own data, batch and schedule."""

    name: str | None = None
    """Name of the phase in logs; by default ``phase1``, ``phase2``, ..."""
    data: str | None = None
    """Folder of instance shards; by default ``data.path/instances/max_seq_length``."""
    max_seq_length: Annotated[int, Field(ge=8)] = 128
    """Length of the longest instance in tokens."""
    steps: PositiveInt
    """Number of optimizer updates in this phase."""
    global_batch_size: PositiveInt
    """Instances that a step trains on, over all ranks; any positive number."""
    learning_rate: PositiveFloat
    """Learning rate at the end of the warm-up, its highest value."""
    warmup_ratio: Share = 0.0
    """Share of the phase's steps during which the learning rate rises linearly from 0."""
    decay: Literal["polynomial", "linear", "cosine", "one_minus_sqrt", "constant"] = "polynomial"
    """How the learning rate falls to ``final_learning_rate`` at the end of the phase: by a polynomial, in a line, along
    half a cosine, as one minus a square root (Haegele et al. 2024), or, if constant, not at all."""
    decay_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the phase's steps, its last ones, during which the learning rate falls; between warm-up and decay it
    stays at its highest value. By default the decay begins where the warm-up ends; a polynomial is then counted from
    the phase's first step, as in NVIDIA's recipe, so that the rate drops at the end of the warm-up."""
    decay_power: PositiveFloat = 1.0
    """Exponent of the polynomial decay: 1 is linear, 0.5 is NVIDIA's LAMB recipe."""
    final_learning_rate: NonNegativeFloat = 0.0
    """Learning rate of the phase's last step, where it decays."""

    @model_validator(mode="after")
    def _schedule_fits_together(self) -> "PhaseConfig":
        if self.final_learning_rate > self.learning_rate:
            raise ValueError(
                f"final_learning_rate={self.final_learning_rate:g} is above learning_rate={self.learning_rate:g}, but "
                "the rate falls; lower it"
            )
        if self.decay == "constant" and (self.decay_ratio or self.final_learning_rate):
            raise ValueError(
                f"decay=constant does not fall, so that decay_ratio={self.decay_ratio} and final_learning_rate="
                f"{self.final_learning_rate:g} mean nothing; leave them out, or choose another decay"
            )
        shares = self.warmup_ratio + (self.decay_ratio or 0)
        if shares > 1 + 1e-9:  # sums of decimal fractions are a little off
            raise ValueError(
                f"warmup_ratio={self.warmup_ratio} and decay_ratio={self.decay_ratio} are {shares:g} of the phase; "
                "together they are 1 at most"
            )
        return self
