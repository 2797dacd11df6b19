"""The loop: phases of steps, with logging, validation and checkpoints at their cadence."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from megabert.config.recipes import phase_name
from megabert.config.run import PhaseConfig, RunConfig
from megabert.data.loader import PackedLoader, StepBatch
from megabert.data.packing import MicroShape
from megabert.data.position import PositionRange
from megabert.data.shard_set import ShardSet
from megabert.distributed.checkpoints import find_checkpoint, load_checkpoint
from megabert.distributed.engine import Engine
from megabert.distributed.process_group import World
from megabert.distributed.together import on_main
from megabert.errors import ConfigError
from megabert.observability.logs import logger
from megabert.observability.metrics import MetricWriter, Value
from megabert.observability.progress import Progress
from megabert.optim import learning_rate
from megabert.training.collectives import agreement
from megabert.training.meter import Meter
from megabert.training.run_folder import checkpoints_dir
from megabert.training.saving import RunCheckpoints
from megabert.training.state import TrainerState
from megabert.training.status import RunStatus
from megabert.training.step import StepResult, train_step
from megabert.training.stop_signals import StopSignals
from megabert.training.validation import validate
from megabert.training.watchdog import Watchdog

MAX_SKIPS_IN_A_ROW = 10
"""Non-finite batches one after another that send the run back to its last checkpoint, without that data."""
MAX_ROLLBACKS_IN_A_ROW = 3
"""Returns to one checkpoint that end the run: not the data, the model itself is broken then."""


@dataclass(frozen=True, kw_only=True)
class PhaseData:
    """What a phase reads, and how its batches are cut."""

    train: ShardSet
    held_out: ShardSet
    shape: MicroShape


class Trainer:
    """Runs the phases that a state has left to do."""

    def __init__(
        self,
        config: RunConfig,
        *,
        engine: Engine,
        phases: list[PhaseData],
        state: TrainerState,
        run_dir: Path,
        world: World,
        status: RunStatus,
        stop: StopSignals,
        watchdog: Watchdog,
    ) -> None:
        """Bind the parts; nothing runs before ``fit``."""
        self.config, self.engine, self.phases = config, engine, phases
        self.optimizer = engine.optimizer
        self.state, self.run_dir, self.world = state, run_dir, world
        self._status, self._stop, self._watchdog = status, stop, watchdog
        self._checkpoints = RunCheckpoints(
            config.checkpoint, engine=engine, world=world, run_dir=run_dir, status=status, watchdog=watchdog
        )
        self._has_consumed = False
        self._bad_data: tuple[PositionRange, ...] = ()
        self._writer = self._open_writer()
        self._agree = agreement(world)
        self._meter = Meter(config, world)

    def fit(self) -> TrainerState:
        """Train to the end of the last phase, or until a signal, and return the state, which is saved."""
        try:
            while not self.state.is_done(self.config):
                if self.state.is_phase_done(self.config):
                    self.state = self.state.next_phase()
                if self._run_phase(self.config.phases[self.state.phase], self.phases[self.state.phase]):
                    return self.state
                if self._needs_rollback():
                    self._roll_back()
                else:
                    self._checkpoints.wait()
            self._checkpoints.settle(self.state)
        finally:
            self._checkpoints.close()
            if self._writer is not None:
                self._writer.close()
        return self.state

    def save(self) -> None:
        """Begin to write a checkpoint of the current step; it is on the disk once ``settle`` returns."""
        with self._meter.pause():
            if self._writer is not None:
                self._writer.flush()
            self._checkpoints.save(self.state)

    def begin(self) -> None:
        """Write the checkpoint that precedes the first step of a run folder."""
        self.save()
        self._checkpoints.settle(self.state)

    def _run_phase(self, phase: PhaseConfig, data: PhaseData) -> bool:
        """Make the steps that a phase has left, until a rollback is needed; return whether a signal ended them."""
        is_stopped = False
        title = phase_name(self.config, self.state.phase)
        loader = PackedLoader(
            data.train,
            seed=self.config.seed,
            global_batch_size=phase.global_batch_size,
            shape=data.shape,
            rank=self.world.rank,
            world_size=self.world.size,
            position=self.state.position,
            first_step=self.state.batches,
            pad=self.world.device.type == "cuda",
            agree=self._agree,
            pin=self.world.device.type == "cuda",
        )
        progress = Progress(title=title, done=self.state.phase_step, total=phase.steps, is_main=self.world.is_main)
        self._meter.start_phase()
        self._watchdog.start_phase()
        with closing(loader), closing(progress):
            while not self.state.is_phase_done(self.config) and not self._needs_rollback():
                if self._stop.received and self._has_consumed:  # a start that is stopped at once still gets on
                    loader.request_stop()
                self._watchdog.expect_step()
                with self._meter.waiting_for_data():
                    batch = next(loader)
                if batch.stop:
                    self._stop_early()
                    is_stopped = True
                    break
                self._step(phase, data, batch, progress)
            loader.close(timeout_s=None)
        self._watchdog.expect("going on from a phase")
        return is_stopped

    def _stop_early(self) -> None:
        """Save, unless the last step did; the batch that carried the request is the next start's first."""
        signals = [f"{name} on rank {rank}" for rank, name in enumerate(self.world.gather(self._stop.received)) if name]
        if self._writer is not None:
            self._writer.flush()
        self._checkpoints.settle(self.state)
        if self.world.is_main:
            logger.info(
                "stopped by %s at step %d, everything is saved: the same command goes on",
                ", ".join(signals),
                self.state.step,
            )

    def _step(self, phase: PhaseConfig, data: PhaseData, batch: StepBatch, progress: Progress) -> None:
        rate = learning_rate(phase, self.state.phase_step + 1)
        self.optimizer.lr = rate
        # NVIDIA's recipe: LAMB's bias correction starts anew with each phase, AdamW's does not.
        counter = self.state.phase_step if self.optimizer.bias_correction_over == "phase" else self.state.step
        self.optimizer.bias_step = counter + 1
        result = train_step(self.engine, batch, self.world)
        self._watchdog.end_step()
        self._has_consumed = True
        self._meter.count(batch)
        if result.grad_norm is None:
            self._bad_data += self.state.position.take(batch.num_instances, data.train.num_rows)[0]
            self.state = self.state.after_skip(samples=batch.num_instances, position=batch.position_after)
            return
        self._bad_data = ()
        self.state = self.state.after_update(samples=batch.num_instances, position=batch.position_after)
        progress.advance()
        is_last = self.state.is_phase_done(self.config)
        step = self.state.step
        if step % self.config.logging.every_steps == 0 or is_last or self.state.phase_step == 1:
            self._log(result, rate, progress)
        improved = False
        if step % self.config.validation.every_steps == 0 or is_last:
            improved = self._validate(phase, data)
        if step % self.config.checkpoint.every_steps == 0 or is_last or improved:
            self.save()

    def _validate(self, phase: PhaseConfig, data: PhaseData) -> bool:
        """Score the held-out split; return whether it is the last phase's best so far."""
        self._watchdog.expect("validating")
        with self._meter.pause():
            metrics = validate(
                self.engine,
                data.held_out,
                shape=data.shape,
                max_instances=self.config.validation.max_instances,
                world=self.world,
            )
        is_last_phase = self.state.phase == len(self.config.phases) - 1
        self.state = self.state.after_validation(metrics, is_last_phase=is_last_phase)
        if self._writer is not None:
            self._writer.write(self.state.step, {"phase": self.state.phase + 1, **metrics})
            logger.info("held out at step %d: %s", self.state.step, _describe_scores(metrics))
        return self.state.best_step == self.state.step

    def _log(self, result: StepResult, rate: float, progress: Progress) -> None:
        perf = self._meter.read()
        losses = result.losses
        ratios = self.optimizer.trust_ratios
        if self._writer is None:
            return
        assert result.grad_norm is not None
        row: dict[str, Value] = {
            "phase": self.state.phase + 1,
            "phase_step": self.state.phase_step,
            **losses.tags("train"),
            "train/lr": rate,
            "train/grad_norm": result.grad_norm,
            "train/loss_scale": self.engine.loss_scale,
            "train/skipped_steps": self.state.skipped_steps,
            "train/rollbacks": self.state.rollbacks,
            "progress/samples": self.state.samples,
            **perf,
        }
        if ratios:
            row["train/trust_ratio/all"] = list(ratios.values())
        self._writer.write(self.state.step, row)
        progress.report(
            self.state.phase_step,
            f"loss {losses.loss:.4f} (masked-LM {losses.values['mlm_loss']:.4f}), lr {rate:.2e}, "
            f"{perf['perf/sequences_per_s']:.0f} sequences/s",
        )

    def _open_writer(self) -> MetricWriter | None:
        return MetricWriter(self.run_dir, resumed_step=self.state.step) if self.world.is_main else None

    def _needs_rollback(self) -> bool:
        # A dynamic loss scale skips on purpose until it fits.
        return self.state.skipped_in_a_row >= MAX_SKIPS_IN_A_ROW and not self.engine.has_dynamic_loss_scale

    def _roll_back(self) -> None:
        """Go back to the last good checkpoint, leave out the data of the skips in a row, and record both at once."""
        failed = self.state
        self._checkpoints.wait()
        folder = on_main(self.world, lambda: find_checkpoint(checkpoints_dir(self.run_dir), "last"))
        stored = TrainerState.from_dict(load_checkpoint(folder, self.engine, self.world))
        if stored.is_phase_done(self.config):  # the skips were the beginning of the phase after it
            stored = stored.next_phase()
        self.state = stored.after_rollback(self._bad_data, skipped_steps=failed.skipped_steps)
        ranges = ", ".join(f"epoch {epoch}: {start} to {stop - 1}" for epoch, start, stop in self._bad_data)
        if self.state.rollbacks_in_a_row > MAX_ROLLBACKS_IN_A_ROW:
            error = ConfigError(
                f"{failed.skipped_in_a_row} batches in a row gave non-finite gradients at step {failed.step} (phase "
                f"{failed.phase + 1}, instances {ranges}), after {MAX_ROLLBACKS_IN_A_ROW} rollbacks to step "
                f"{stored.step}, each without the data before: the model has diverged. The checkpoint is whole: start "
                f"a new run from it with a lower learning rate: megabert pretrain ... --init-from {self.run_dir} "
                f"--run-dir NEW --phases.{failed.phase}.learning_rate LOWER"
            )
            error.is_echo = not self.world.is_main
            raise error
        if self._writer is not None:
            self._writer.close()
            logger.warning(
                "rollback %d: %d batches in a row were not finite at step %d; going on at step %d without instances %s",
                self.state.rollbacks,
                failed.skipped_in_a_row,
                failed.step,
                self.state.step,
                ranges,
            )
        self._writer = self._open_writer()
        self._bad_data = ()
        self.save()


def _describe_scores(metrics: dict[str, float]) -> str:
    parts = [f"masked-LM loss {metrics['eval/mlm_loss']:.4f}, accuracy {100 * metrics['eval/mlm_accuracy']:.2f}%"]
    if "eval/nsp_accuracy" in metrics:
        parts.append(f"next-sentence accuracy {100 * metrics['eval/nsp_accuracy']:.2f}%")
    if "eval/rtd_auc" in metrics:
        parts.append(f"discriminator loss {metrics['eval/rtd_loss']:.4f}, AUC {metrics['eval/rtd_auc']:.4f}")
    return "; ".join(parts)
