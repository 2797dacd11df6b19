"""The loop: phases of steps, with logging, validation and checkpoints at their cadence."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from megabert.checkpoints.loading import load_checkpoint
from megabert.config.recipes import phase_name
from megabert.config.run import PhaseConfig, RunConfig
from megabert.data import MicroShape, PackedLoader, RankShare, StepBatch, StepPacker
from megabert.data.position import PositionRange
from megabert.data.shard_set import ShardSet
from megabert.distributed.all_or_none import raise_everywhere, run_on_main_rank
from megabert.distributed.collectives import agreement
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine, LossScaleFloor
from megabert.observability.logs import logger
from megabert.observability.metrics import MetricWriter, Value
from megabert.observability.profiler import StepProfiler
from megabert.observability.progress import Progress
from megabert.optim import learning_rate
from megabert.training.meter import Meter
from megabert.training.recovery import rollback
from megabert.training.recovery.stop_signals import StopSignals
from megabert.training.recovery.watchdog import Watchdog
from megabert.training.run.checkpoint_schedule import RunCheckpoints
from megabert.training.run.status import RunStatus
from megabert.training.state import TrainerState
from megabert.training.step import StepResult, train_step
from megabert.training.validation import validate


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
            config,
            engine=engine,
            world=world,
            run_dir=run_dir,
            status=status,
            watchdog=watchdog,
            state=state,
        )
        self._has_consumed = False
        self._writer = self._open_writer()
        self._agree = agreement(world)
        self._meter = Meter(config, world)
        self._profiler = StepProfiler(config.logging, run_dir, world.rank)

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
            self.state = self._checkpoints.settle(self.state)
        finally:
            self._profiler.close(self.state.step)
            self._checkpoints.close()
            if self._writer is not None:
                self._writer.close()
        return self.state

    def save(self) -> None:
        """Begin to write a checkpoint of the current step; it is on the disk once ``settle`` returns."""
        with self._meter.pause():
            if self._writer is not None:
                self._writer.flush()
            self.state = self._checkpoints.save(self.state)

    def begin(self) -> None:
        """Write the checkpoint that precedes the first step of a run folder."""
        self.save()
        self.state = self._checkpoints.settle(self.state)

    def _run_phase(self, phase: PhaseConfig, data: PhaseData) -> bool:
        """Make the steps that a phase has left, until a rollback is needed; return whether a signal ended them."""
        is_stopped = False
        title = phase_name(self.config, self.state.phase)
        is_gpu = self.world.device.type == "cuda"
        share = RankShare(shape=data.shape, rank=self.world.rank, world_size=self.world.size, pad=is_gpu, pin=is_gpu)
        packer = StepPacker(data.train, seed=self.config.seed, global_batch_size=phase.global_batch_size, share=share)
        loader = PackedLoader(packer, position=self.state.position, first_number=self.state.batches, agree=self._agree)
        progress = Progress(title=title, done=self.state.phase_step, total=phase.steps, is_main=self.world.is_main)
        self._meter.start_phase()
        self._watchdog.start_phase()
        with closing(loader), closing(progress):
            while not self.state.is_phase_done(self.config) and not self._needs_rollback():
                if self._stop.received and self._has_consumed:  # a start that is stopped at once still gets on
                    loader.request_stop()
                self._watchdog.expect_step(self.state.step + 1)
                self._profiler.before(self.state.step + 1)
                with self._meter.waiting_for_data():
                    batch = next(loader)
                if batch.stop:
                    self._stop_early()
                    is_stopped = True
                    break
                self._step(phase, data, batch, progress)
                self._profiler.after(self.state.step)
            loader.close(timeout_s=None)
        self._watchdog.expect("going on from a phase")
        return is_stopped

    def _stop_early(self) -> None:
        """Save, unless the last step did; the batch that carried the request is the next start's first."""
        signals = [f"{name} on rank {rank}" for rank, name in enumerate(self.world.gather(self._stop.received)) if name]
        if self._writer is not None:
            self._writer.flush()
        self.state = self._checkpoints.settle(self.state)
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
        result = self._train(batch)
        self._watchdog.end_step()
        self._has_consumed = True
        self._meter.count(batch)
        taken = self.state.position.take(batch.num_instances, data.train.num_rows)[0]
        if result.grad_norm is None:
            self.state = self.state.after_skip(taken, samples=batch.num_instances, position=batch.position_after)
            return
        self.state = self.state.after_update(samples=batch.num_instances, position=batch.position_after)
        self._look_for_spike(result.losses.loss, taken)
        progress.advance()
        is_last = self.state.is_phase_done(self.config)
        step = self.state.step
        if step % self.config.logging.every_steps == 0 or is_last or self.state.phase_step == 1:
            self._log(result, rate, progress)
        improved = False
        if step % self.config.validation.every_steps == 0 or is_last:
            improved = self._validate(phase, data)
        is_due = (improved or step % self.config.checkpoint.every_steps == 0) and not self.state.spikes_in_a_row
        if is_due or (is_last and not self._needs_rollback()):
            self.save()

    def _train(self, batch: StepBatch) -> StepResult:
        def computed() -> None:
            self._meter.end_computing()
            self._watchdog.wait_for_others()

        self._meter.start_computing()
        try:
            return train_step(self.engine, batch, self.world, computed=computed)
        except LossScaleFloor as floor:  # on every rank alike
            self._checkpoints.wait()
            step = run_on_main_rank(self.world, lambda: rollback.drop_trouble(self.run_dir, self.state)[1])
            tried = "and no smaller loss scale is left to try"
            raise_everywhere(
                self.world, rollback.divergence(self.run_dir, self.state, reason=floor.reason, tried=tried, step=step)
            )

    def _look_for_spike(self, loss: float, taken: tuple[PositionRange, ...]) -> None:
        self.state = self.state.after_loss(loss, self.config.rollback, taken)
        if self.state.spikes_in_a_row and self.world.is_main:
            logger.warning(
                "spike: loss %.4f at step %d, %d in a row",
                loss,
                self.state.step,
                self.state.spikes_in_a_row,
            )

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
            "train/failed_checkpoints": self._checkpoints.counts.failures,
            "perf/checkpoint_stall_s": self._checkpoints.counts.stall_s,
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
        dynamic = self.engine.has_dynamic_loss_scale
        return rollback.is_due(self.state, self.config.rollback, has_dynamic_loss_scale=dynamic)

    def _roll_back(self) -> None:
        """Go back to the last good checkpoint, leave out the data that is blamed, and record both at once."""
        failed, reason = self.state, rollback.describe(self.state, self.config.rollback)
        self._checkpoints.wait()
        folder, step = run_on_main_rank(self.world, lambda: rollback.drop_trouble(self.run_dir, failed))
        stored = TrainerState.from_dict(load_checkpoint(folder, self.engine, self.world))
        # The trouble was at the beginning of the phase after it.
        if stored.is_phase_done(self.config) and not stored.is_done(self.config):
            stored = stored.next_phase()
        bad = failed.bad_data.ranges if stored.phase == failed.phase else ()
        self.state = stored.after_rollback(bad, skipped_steps=failed.skipped_steps)
        limit = self.config.rollback.max_in_a_row
        if self.state.rollbacks_in_a_row > limit:
            tried = f"after {limit} rollbacks to step {step}, each without the data before"
            raise_everywhere(
                self.world, rollback.divergence(self.run_dir, failed, reason=reason, tried=tried, step=step)
            )
        if self._writer is not None:
            self._writer.close()
            logger.warning(
                "rollback %d: %s at step %d; going on at step %d without instances %s",
                self.state.rollbacks,
                reason,
                failed.step,
                self.state.step,
                failed.bad_data,
            )
        self._writer = self._open_writer()
        self.save()


def _describe_scores(metrics: dict[str, float]) -> str:
    parts = [f"masked-LM loss {metrics['eval/mlm_loss']:.4f}, accuracy {100 * metrics['eval/mlm_accuracy']:.2f}%"]
    if "eval/nsp_accuracy" in metrics:
        parts.append(f"next-sentence accuracy {100 * metrics['eval/nsp_accuracy']:.2f}%")
    if "eval/rtd_auc" in metrics:
        parts.append(f"discriminator loss {metrics['eval/rtd_loss']:.4f}, AUC {metrics['eval/rtd_auc']:.4f}")
    return "; ".join(parts)
