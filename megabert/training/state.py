"""What a run has done so far: everything beside the tensors that a checkpoint must bring back."""

import math
import statistics
from dataclasses import dataclass, field, replace
from typing import Any

from megabert.config.run import RollbackConfig, RunConfig
from megabert.data.position import DataPosition
from megabert.training.micro_batch_size import Budgets
from megabert.training.recovery.blamed_data import BlamedData, Ranges


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """Counters of a run, saved with each checkpoint.

    Attributes:
        step: Optimizer updates over all phases; every tag's axis.
        phase: Index of the phase that the next update belongs to, or of the last phase at the end.
        phase_step: Updates in this phase; drives the schedule and LAMB's bias correction.
        batches: Global batches consumed over all phases, skipped ones included; keys dropout.
        samples: Instances of those batches.
        position: Where the phase's data goes on.
        skipped_steps: Batches whose loss or gradients were not finite.
        skipped_in_a_row: Those since the last update.
        recent_losses: Of the running median that tells spikes, where these are looked for; spikes are not among them.
        spikes_in_a_row: Updates since then whose loss was a spike.
        bad_data: What these skips or spikes in a row are blamed on.
        rollbacks: Returns to an earlier checkpoint, after skips or spikes in a row.
        rollbacks_in_a_row: Those to the same checkpoint.
        rollback_step: Step of that checkpoint, or None.
        best_step: Step of the lowest held-out loss of the last phase, or None; set in the last phase only.
        best_loss: That loss.
        budgets: Token budget of each phase, as found or as set.
        data_sha256: Identity of each phase's shards.
        metrics: Held-out metrics of the phase's latest validation.
        metrics_step: Step of that validation, or None.
    """

    step: int = 0
    phase: int = 0
    phase_step: int = 0
    batches: int = 0
    samples: int = 0
    position: DataPosition = field(default_factory=DataPosition)
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    recent_losses: tuple[float, ...] = ()
    spikes_in_a_row: int = 0
    bad_data: BlamedData = field(default_factory=BlamedData)
    rollbacks: int = 0
    rollbacks_in_a_row: int = 0
    rollback_step: int | None = None
    best_step: int | None = None
    best_loss: float | None = None
    budgets: Budgets = field(default_factory=Budgets)
    data_sha256: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_step: int | None = None

    def after_update(self, *, samples: int, position: DataPosition) -> "TrainerState":
        """Return the state after an optimizer update on a batch."""
        consumed = self._after_batch(samples=samples, position=position)
        return replace(consumed, step=self.step + 1, phase_step=self.phase_step + 1, skipped_in_a_row=0)

    def after_skip(self, taken: Ranges, *, samples: int, position: DataPosition) -> "TrainerState":
        """Return the state after a batch that was consumed without an update; the schedule holds."""
        return replace(
            self._after_batch(samples=samples, position=position),
            skipped_steps=self.skipped_steps + 1,
            skipped_in_a_row=self.skipped_in_a_row + 1,
            bad_data=self.bad_data.after_skip(taken),
        )

    def after_loss(self, loss: float, rule: RollbackConfig, taken: Ranges) -> "TrainerState":
        """Return the state after looking at the loss of an update on the data taken: is it a spike?"""
        if rule.spike_ratio is None:
            return replace(self, bad_data=BlamedData())
        known = self.recent_losses
        if 2 * len(known) >= rule.spike_window and loss > rule.spike_ratio * statistics.median(known):
            return replace(self, spikes_in_a_row=self.spikes_in_a_row + 1, bad_data=self.bad_data.after_spike(taken))
        return replace(
            self,
            recent_losses=(*known, loss)[-rule.spike_window :],
            spikes_in_a_row=0,
            bad_data=self.bad_data.after_good(taken),
        )

    def after_rollback(self, ranges: Ranges, *, skipped_steps: int) -> "TrainerState":
        """Return this state, a checkpoint's, as the one to go on from: without the data that is blamed.

        Args:
            ranges: That data, in the order of the phase that goes on.
            skipped_steps: Batches skipped so far, those after the checkpoint included.
        """
        again = self.rollbacks_in_a_row if self.rollback_step == self.step else 0
        return replace(
            self,
            position=self.position.skipping(ranges),
            skipped_steps=skipped_steps,
            skipped_in_a_row=0,
            spikes_in_a_row=0,
            bad_data=BlamedData(),
            rollbacks=self.rollbacks + 1,
            rollbacks_in_a_row=again + 1,
            rollback_step=self.step,
        )

    def after_validation(self, metrics: dict[str, float], *, is_last_phase: bool) -> "TrainerState":
        """Return the state with new held-out metrics; the lowest finite loss of the last phase is the best."""
        loss = metrics["eval/loss"]
        validated = replace(self, metrics=metrics, metrics_step=self.step)
        if is_last_phase and math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            return replace(validated, best_step=self.step, best_loss=loss)
        return validated

    def with_best(self, step: int | None, loss: float | None) -> "TrainerState":
        """Return the state with another best checkpoint: the one that it names could not be written."""
        return replace(self, best_step=step, best_loss=loss)

    def next_phase(self) -> "TrainerState":
        """Return the state at the beginning of the next phase: its own data and schedule."""
        return replace(
            self,
            phase=self.phase + 1,
            phase_step=0,
            position=DataPosition(),
            recent_losses=(),
            spikes_in_a_row=0,
            bad_data=BlamedData(),
            metrics={},
            metrics_step=None,
        )

    def ends_of_phases(self, config: RunConfig) -> set[int]:
        """Return the steps at which the phases before this one ended."""
        end, ends = self.step - self.phase_step, set()
        for phase in reversed(config.phases[: self.phase]):
            ends.add(end)
            end -= phase.steps
        return ends

    def is_phase_done(self, config: RunConfig) -> bool:
        """Whether every update of the current phase was made."""
        return self.phase_step >= config.phases[self.phase].steps

    def is_done(self, config: RunConfig) -> bool:
        """Whether the run is complete."""
        return self.phase == len(config.phases) - 1 and self.is_phase_done(config)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        parts = {"budgets": self.budgets.__dict__, "bad_data": self.bad_data.__dict__}
        return self.__dict__ | parts | {"position": self.position.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainerState":
        """Inverse of ``to_dict``, after a round trip through JSON."""
        budgets = values["budgets"]
        return cls(
            **{
                **values,
                "position": DataPosition.from_dict(values["position"]),
                "budgets": Budgets(tokens=tuple(budgets["tokens"]), found_for=budgets["found_for"]),
                "data_sha256": tuple(values["data_sha256"]),
                "recent_losses": tuple(values["recent_losses"]),
                "bad_data": BlamedData.from_dict(values["bad_data"]),
            }
        )

    def _after_batch(self, *, samples: int, position: DataPosition) -> "TrainerState":
        return replace(self, batches=self.batches + 1, samples=self.samples + samples, position=position)
