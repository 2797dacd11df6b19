"""The progress of a run, and the work that is due: all that a checkpoint must bring back but the tensors."""

import math
import statistics
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from pydantic import Field

from megabert.data.mixture import Ranges
from megabert.data.order import BEGINNING, DataPosition
from megabert.foundation.errors import CheckpointError
from megabert.foundation.json_files import parse_values, to_json
from megabert.settings.config.phase import DataStart
from megabert.settings.config.run import RollbackConfig, RunConfig

RangesByBuild = dict[str, Ranges]
Counter = Annotated[int, Field(ge=0, le=2**53)]  # exact as a float64, too


@dataclass(frozen=True)
class BlamedData:
    """The data of the latest batches in a row that were skipped, or whose loss was a spike.

    A rollback leaves these instances out when it repeats the steps that went wrong.
    """

    ranges: RangesByBuild = field(default_factory=dict)
    """Instances that are blamed, by the SHA-256 of their data, in the order in which they were read."""
    last_good: RangesByBuild = field(default_factory=dict)
    """Instances of the last batch that was neither skipped nor a spike."""

    def __str__(self) -> str:
        return ", ".join(
            f"epoch {epoch}: {start} to {stop - 1}" + (f" of {key[:12]}" if len(self.ranges) > 1 else "")
            for key, ranges in self.ranges.items()
            for epoch, start, stop in ranges
        )


def _all_ranges(*parts: RangesByBuild) -> RangesByBuild:
    """Return the ranges of several parts, in their order, by build."""
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: tuple(ranges for part in parts for ranges in part.get(key, ())) for key in keys}


@dataclass(frozen=True, kw_only=True)
class MicroBatchTokens:
    """The most tokens of a micro-step in each phase, and which machine and model the numbers are for."""

    tokens: tuple[int, ...] = ()
    """Packed tokens of a rank's micro-batch, one number for each phase."""
    found_for: str = ""
    """Everything that the numbers depend on; empty if the configuration sets them."""


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """Counters of a run, saved with each checkpoint.

    A state never changes: each ``after_...`` method returns the next one, so that a checkpoint which is written in the
    background keeps the state that it was started with.
    """

    step: Counter = 0
    """Optimizer updates over all phases; the axis of every logged value."""
    phase: Counter = 0
    """Index of the phase that the next update belongs to, or of the last phase at the end."""
    phase_step: Counter = 0
    """Updates in this phase; drives the learning rate and LAMB's bias correction."""
    phase_skipped: Counter = 0
    """Batches of this phase that were skipped."""
    batches: Counter = 0
    """Global batches consumed over all phases, skipped ones included; keys the dropout masks."""
    samples: Counter = 0
    """Instances in these batches."""
    positions: dict[str, DataPosition] = field(default_factory=dict)
    """Where the data of each build continue, by their SHA-256, whichever phase has read them; a build that was not read
    yet is missing."""
    skipped_steps: Counter = 0
    """Batches whose loss or gradients were not finite."""
    skipped_in_a_row: Counter = 0
    """Skipped batches since the last update."""
    recent_losses: tuple[float, ...] = ()
    """Recent losses without spikes; spikes are measured against their median. Empty if spike detection is off."""
    spikes_in_a_row: Counter = 0
    """Latest updates in a row whose loss was a spike."""
    bad_data: BlamedData = field(default_factory=BlamedData)
    """Data that the latest skips or spikes are blamed on."""
    rollbacks: Counter = 0
    """Returns to an earlier checkpoint, after skips or spikes in a row."""
    rollbacks_in_a_row: Counter = 0
    """Latest returns in a row that led to the same checkpoint."""
    rollback_step: Counter | None = None
    """Step of the checkpoint that the last rollback returned to."""
    best_step: Counter | None = None
    """Step of the lowest held-out loss of the last phase; None before the last phase was validated."""
    best_loss: float | None = None
    """The held-out loss at ``best_step``."""
    budgets: MicroBatchTokens = field(default_factory=MicroBatchTokens)
    """Size of each phase's micro-batches, as set or as measured by trying."""
    data_sha256: tuple[tuple[str, ...], ...] = ()
    """Identity of each phase's shards, one for each source."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Held-out metrics of the phase's latest validation."""
    metrics_step: Counter | None = None
    """Step of that validation."""

    def after_batch(
        self, loss: float | None, *, taken: RangesByBuild, positions: dict[str, DataPosition], rule: RollbackConfig
    ) -> "TrainerState":
        """Return the state after one global batch, which was either skipped or led to an update.

        Args:
            loss: Loss of the batch, alike on every rank; None if the update was skipped, since the loss or a gradient
                was not finite.
            taken: Which instances of each build the batch consisted of.
            positions: Where the data of all builds continue after the batch.
            rule: Says which losses are spikes.
        """
        samples = self.samples + sum(stop - start for ranges in taken.values() for _, start, stop in ranges)
        consumed = replace(self, batches=self.batches + 1, samples=samples, positions=positions)
        blamed = self.bad_data
        # Without an update the schedule holds: the learning rate counts updates, the data position counts batches.
        if loss is None:
            return replace(
                consumed,
                phase_skipped=self.phase_skipped + 1,
                skipped_steps=self.skipped_steps + 1,
                skipped_in_a_row=self.skipped_in_a_row + 1,
                bad_data=replace(blamed, ranges=_all_ranges(blamed.ranges, taken)),  # it alone: it changed no weight
            )
        updated = replace(consumed, step=self.step + 1, phase_step=self.phase_step + 1, skipped_in_a_row=0)
        if rule.spike_ratio is None:  # since this start, perhaps
            return replace(updated, bad_data=BlamedData(), spikes_in_a_row=0, recent_losses=())
        # A spike is far above the median of the losses before it. Half a window of them has to be known first, and a
        # spike never joins them: else a loss that stays high would soon count as normal.
        known = self.recent_losses
        if 2 * len(known) >= rule.spike_window and loss > rule.spike_ratio * statistics.median(known):
            # The batch before it as well: a loss is computed before its update, so bad weights show one batch after the
            # batch that spoiled them.
            bad_data = BlamedData(_all_ranges(blamed.ranges, blamed.last_good, taken))
            return replace(updated, spikes_in_a_row=self.spikes_in_a_row + 1, bad_data=bad_data)
        return replace(
            updated,
            recent_losses=(*known, loss)[-rule.spike_window :],
            spikes_in_a_row=0,
            bad_data=BlamedData(last_good=taken),
        )

    def has_spiked(self, rule: RollbackConfig) -> bool:
        """Whether enough losses in a row were spikes for the rule to ask for a rollback."""
        return rule.spike_ratio is not None and self.spikes_in_a_row >= rule.spike_steps

    def after_rollback(self, failed: "TrainerState") -> "TrainerState":
        """Return this state, a checkpoint's, as the one to continue from: without the data that is blamed.

        Args:
            failed: The state that the run is in. It knows the rollbacks until now and the data that they left out, also
                if the disk was too full to write the checkpoint again.
        """
        # Returns to another checkpoint mean that the run has advanced in between: counting begins again.
        again = failed.rollbacks_in_a_row if failed.rollback_step == self.step else 0
        skipped = {key: position.skipped for key, position in failed.positions.items()}
        bad = _all_ranges(skipped, failed.bad_data.ranges)
        left_out = {key: self.positions.get(key, BEGINNING).skipping(ranges) for key, ranges in bad.items() if ranges}
        return replace(
            self,
            positions={**self.positions, **left_out},
            skipped_steps=failed.skipped_steps,
            skipped_in_a_row=0,
            spikes_in_a_row=0,
            bad_data=BlamedData(),
            rollbacks=failed.rollbacks + 1,
            rollbacks_in_a_row=again + 1,
            rollback_step=self.step,
        )

    def after_validation(self, metrics: dict[str, float], *, is_last_phase: bool) -> "TrainerState":
        """Return the state with new held-out metrics; the lowest finite loss of the last phase is the best.

        Losses of different phases are not compared: longer sequences are easier to predict.
        """
        loss = metrics["eval/loss"]
        validated = replace(self, metrics=metrics, metrics_step=self.step)
        if is_last_phase and math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            return replace(validated, best_step=self.step, best_loss=loss)
        return validated

    def next_phase(self, *, data_start: DataStart = "continue") -> "TrainerState":
        """Return the state at the beginning of the next phase.

        Args:
            data_start: Where it begins in shards that an earlier phase has read.

        Restarted with a phase: the schedule (``phase_step``, and with it the learning rate and LAMB's bias
        correction), the shares of the sources, the losses that spikes are compared
        with, the blamed data, and the held-out metrics, which belong to the phase's own held-out split. Outside of this
        state also the loader, the pace that the watchdog has learned, and the throughput meter.

        Continued: weights, moments, AdamW's bias correction, the loss scale, ``batches`` (no dropout mask comes
        twice), the counts of samples, skips and rollbacks, and the data where an earlier phase read the same shards.
        """
        begun: dict[str, DataPosition] = {}
        if data_start == "beginning":  # data blamed for trouble is left out again
            known = self.positions.keys() & self.data_sha256[self.phase + 1]
            begun = {key: replace(BEGINNING, skipped=self.positions[key].skipped) for key in known}
        return replace(
            self,
            phase=self.phase + 1,
            phase_step=0,
            phase_skipped=0,
            positions={**self.positions, **begun},
            recent_losses=(),
            spikes_in_a_row=0,
            bad_data=BlamedData(),
            metrics={},
            metrics_step=None,
        )

    @property
    def first_batch(self) -> int:
        """Number, counted over all phases, of the first global batch of this phase."""
        return self.batches - self.phase_step - self.phase_skipped

    def ends_of_phases(self, config: RunConfig) -> set[int]:
        """Return the steps at which the phases before this one ended."""
        # Steps are counted over all phases, so the ends are found backwards from the beginning of this one.
        end, ends = self.step - self.phase_step, set()
        for phase in reversed(config.phases[: self.phase]):
            ends.add(end)
            end -= phase.num_steps
        return ends

    def steps_left(self, config: RunConfig) -> list[int]:
        """Return the updates of each phase that are not made yet."""
        left = [phase.num_steps for phase in config.phases]
        left[: self.phase] = [0] * self.phase
        left[self.phase] = max(0, left[self.phase] - self.phase_step)
        return left

    def is_phase_done(self, config: RunConfig) -> bool:
        """Whether every update of the current phase was made."""
        return self.phase_step >= config.phases[self.phase].num_steps

    def is_done(self, config: RunConfig) -> bool:
        """Whether the run is complete."""
        return self.phase == len(config.phases) - 1 and self.is_phase_done(config)

    def is_log_due(self, config: RunConfig) -> bool:
        """Whether to log: at its interval, and at the first and the last step of a phase."""
        is_regular = self.step % config.logging.every_steps == 0
        return is_regular or self.phase_step == 1 or self.is_phase_done(config)

    def is_validation_due(self, config: RunConfig) -> bool:
        """Whether to score the held-out split: at its interval, and at the end of a phase."""
        return self.step % config.validation.every_steps == 0 or self.is_phase_done(config)

    def is_checkpoint_due(self, config: RunConfig) -> bool:
        """Whether to save: at its interval, after the best validation so far, and at the end of a phase.

        A state whose loss was a spike may be worthless, and a rollback wants a good one to return to. It is saved only
        if the held-out loss says that it is the best, or if the phase ends with it and no rollback is about to happen.
        """
        if self.is_phase_done(config):
            return not self.has_spiked(config.rollback)
        is_regular = self.step % config.checkpoint.every_steps == 0
        return self.best_step == self.step or (is_regular and not self.spikes_in_a_row)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, as a checkpoint manifest holds them."""
        return to_json(self)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, values: dict[str, Any], config: RunConfig | None = None) -> "TrainerState":
        """Read what ``to_dict`` wrote.

        Args:
            values: Its result.
            config: Configuration of the run that wrote it, which the phases have to fit.

        Raises:
            CheckpointError: A value is missing, unknown or impossible.
        """
        remedy = "Resume from another checkpoint."
        differing = sorted({f.name for f in fields(cls)} ^ values.keys())
        if differing:
            what = "lacks" if differing[0] not in values else "has an unknown"
            raise CheckpointError(f"trainer state: damaged or edited ({what} {differing[0]}). {remedy}")
        state = parse_values(values, cls, where="trainer state", remedy=remedy, error=CheckpointError)
        phases = None if config is None else len(config.phases)
        if phases is not None and (state.phase >= phases or len(state.data_sha256) != phases):
            raise CheckpointError(
                f"trainer state: damaged or edited (phase={state.phase} and the shards of {len(state.data_sha256)} "
                f"phases, but the run has {phases}, counted from 0). {remedy}"
            )
        return state
