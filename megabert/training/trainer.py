"""The training loop: phases of steps, with logging, validation and checkpoints at their cadence.

``Trainer.fit`` and ``Trainer._run_phase`` are the loop, from top to bottom. One step's arithmetic is in ``step.py``,
the counters and the dates of logging, validation and checkpoints in ``state.py``, the loader of a phase in
``step.py``, and the answer to numbers that go wrong in ``recovery/rollback.py``. The rest is one state that every
method changes, so it is not cut once more to be shorter.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import cast

from megabert.checkpoints.format import folder_name
from megabert.checkpoints.loading import load_checkpoint
from megabert.data.loader import PackedLoader
from megabert.data.packing import MicroShape, shape_for
from megabert.data.step_packer import StepBatch
from megabert.distributed.process_group import World, raise_everywhere, run_on_main_rank
from megabert.engine.deepspeed_parts import LossScaleFloor
from megabert.engine.engine import Engine
from megabert.models.bert import PretrainingModel
from megabert.observability.follower import Value
from megabert.observability.logs import Progress, logger, pace, seconds_left
from megabert.observability.metrics import MetricWriter
from megabert.observability.profiler import StepProfiler
from megabert.optim import StepSettings, learning_rate
from megabert.settings.command_line.signals import SIGNALS
from megabert.settings.config.loading import phase_name
from megabert.settings.config.phase import PhaseConfig
from megabert.tokens.shards.folder import InstanceStatistics
from megabert.training.callbacks import Callbacks
from megabert.training.meter import Meter
from megabert.training.new_positions import fill_new_positions
from megabert.training.probes.run_probes import run_probes
from megabert.training.recovery import rollback
from megabert.training.recovery.stop_signals import StopSignals
from megabert.training.recovery.watchdog import Watchdog
from megabert.training.run.checkpoint_writer import CheckpointWriter
from megabert.training.run.folder import checkpoints_dir
from megabert.training.run.ready_shards import check_phases, is_ahead, keep_checked
from megabert.training.run.start import RunInputs
from megabert.training.run.status import RunStatus
from megabert.training.state import TrainerState
from megabert.training.step import StepResult, accumulate, describe_scores, open_loader, update, validate

SCORES = ("eval/mlm_loss", "eval/mlm_accuracy", "train/loss")
"""Tags whose last values TensorBoard shows next to the hyper-parameters."""


class Trainer:
    """Runs the phases that a state has left to do. Close it on every way out, after an error has been reported."""

    def __init__(
        self,
        inputs: RunInputs,
        *,
        engine: Engine,
        state: TrainerState,
        run_dir: Path,
        world: World,
        status: RunStatus,
        stop: StopSignals,
        watchdog: Watchdog,
        callbacks: Callbacks,
    ) -> None:
        """Open the run's metrics; nothing runs before ``begin`` or ``fit``."""
        config = inputs.config
        self.config, self.engine, self.optimizer = config, engine, engine.optimizer
        self.state, self.run_dir, self.world = state, run_dir, world
        self._shards, self._probes, self._budgets = inputs.shards, inputs.probes, state.budgets.tokens
        self._stop, self._watchdog, self._callbacks = stop, watchdog, callbacks
        self._checkpoints = CheckpointWriter(
            config, engine=engine, world=world, run_dir=run_dir, status=status, watchdog=watchdog, state=state
        )
        world.failures.finish_writing = self._checkpoints.close
        self._has_consumed = False
        self._replaced_ops = status.record.replaced_ops
        self._writer = self._open_writer()
        self._meter = Meter(config, world)
        self._profiler = StepProfiler(config.logging, run_dir, world.rank)
        SIGNALS.waits_for = watchdog.describe

    def fit(self) -> TrainerState:
        """Train to the end of the last phase, or until a signal, and return the state, which is saved."""
        while not self.state.is_done(self.config):
            if self.state.is_phase_done(self.config):
                self.state = self._next_phase(self.state)
            is_stopped = self._run_phase()
            # It ends in one of three ways: a signal, numbers that went wrong, or all its steps.
            if is_stopped:
                return self.state
            if self._needs_rollback():
                self._roll_back()
            else:
                self._checkpoints.wait()  # the end of a phase is on the disk before the next one begins
        self.state = self._checkpoints.settle(self.state)
        self._report_checkpoints()
        return self.state

    def close(self) -> None:
        """Finish the files that are being written, also after an error: the next start and the user depend on them."""
        self._profiler.close(self.state.step)
        self._checkpoints.close()
        SIGNALS.waits_for = lambda: "the run's last records"  # the watchdog leads to the engine, which would stay alive
        if self._writer is not None:
            self._writer.close()

    def _run_phase(self) -> bool:
        """Make the steps that a phase has left, until a rollback is needed; return whether a signal ended them."""
        phase, is_stopped, first = self.config.phases[self.state.phase], False, self.state.step + 1
        title, is_main = phase_name(self.config, self.state.phase), self.world.is_main
        cast(PretrainingModel, self.engine.module).begin_phase(phase)
        if self.config.init_from is not None and self.state.step == 0:  # the scores that the continuation starts from
            with self._reporting():
                self._validate()
        with (
            closing(self._open_loader(phase)) as loader,
            Progress(title=title, done=self.state.phase_step, total=phase.num_steps, is_main=is_main) as progress,
            self._reporting(),
        ):
            self._meter.restart()
            self._watchdog.start_phase()
            while not self.state.is_phase_done(self.config) and not self._needs_rollback():
                # A signal may reach one rank only, and all have to stop at the same step. So the request travels with
                # the batches, on which the ranks agree anyway. A start that is stopped at once still makes a step:
                # else a job with a short time limit would be started again and again and never advance.
                if self._stop.received and self._has_consumed:
                    loader.request_stop()

                # The loader's thread has packed this batch (`StepPacker.pack`) while the previous step was computed.
                self._watchdog.expect_step(self.state.step + 1)
                self._profiler.before(self.state.step + 1)
                with self._meter.timing("data"):
                    batch = next(loader)
                if batch.stop:
                    self._stop_early()
                    is_stopped = True
                    break

                # Forward, backward, update. If anything was not finite, the batch is skipped on all ranks.
                result = self._step(batch, phase)
                self._advance(batch, result)

                # A skipped batch is no step: no weight has changed, so there is nothing to log, score or save.
                if not result.is_skipped:
                    progress.advance()
                    # The first step also waits for the loader and compiles: its rate says nothing about the others.
                    is_first = self.state.step == first
                    if self.state.is_log_due(self.config):
                        self._log(batch, result, progress, is_first=is_first)
                    elif is_first:
                        self._meter.restart()
                    if self.state.is_validation_due(self.config):
                        self._validate()
                    if self.state.is_checkpoint_due(self.config):
                        self.save()
                    self._report_checkpoints()
                if self._profiler.ends_with(self.state.step):
                    self._watchdog.expect("writing a profile")
                    with self._meter.timing("pause"):
                        self._profiler.close(self.state.step)
                        self.world.gather(None)  # ranks that record nothing wait here, not in their next step
            # The thread has agreed with the other ranks on one more batch, or still waits for them: let it finish.
            loader.close(timeout_s=None)
        self._watchdog.expect("ending a phase")
        return is_stopped

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report an error to the other ranks before the loader is closed, which may wait for them."""
        try:
            with self.world.failures.reporting():
                yield
        except BaseException:
            self._watchdog.expect("ending after an error")
            raise

    def save(self) -> None:
        """Begin to write a checkpoint of the current step; it is on the disk once ``settle`` returns."""
        with self._meter.timing("pause"):
            self._sync_metrics()
            self.state = self._checkpoints.save(self.state)

    def _sync_metrics(self) -> None:
        """Bring the rows to the disk before a checkpoint, which may not be ahead of them, within the same limit."""
        self._watchdog.expect("writing a checkpoint")
        if self._writer is not None:
            self._writer.flush()

    def _report_checkpoints(self) -> None:
        """Call the user's function for the checkpoints that have been completed by now."""
        while self.world.is_main and self._checkpoints.completed:
            step = self._checkpoints.completed.popleft()
            folder = checkpoints_dir(self.run_dir) / folder_name(step)
            self._callbacks.call("on_checkpoint", step, folder, self._stop)

    def begin(self) -> None:
        """Write the checkpoint that precedes the first step of a run folder."""
        self.save()
        self.state = self._checkpoints.settle(self.state)

    def _shape(self, statistics: InstanceStatistics) -> MicroShape:
        """Return the greatest micro-batch of the present phase."""
        index = self.state.phase
        batch, budget = self.config.phases[index].global_batch_size, self._budgets[index]
        return shape_for(statistics, global_batch_size=batch, world_size=self.world.size, micro_batch_tokens=budget)

    def _open_loader(self, phase: PhaseConfig) -> PackedLoader:
        train = self._shards[self.state.phase].train
        shape = self._shape(train.statistics_in(phase))
        return open_loader(self.config, self.state, train, shape=shape, world=self.world)

    def _next_phase(self, state: TrainerState) -> TrainerState:
        begun = state.phase + 1
        if is_ahead(self._shards[begun]):
            checked = check_phases(self._shards[begun : begun + 1], self.run_dir, self.world, self._watchdog)
            keep_checked(checked, self.run_dir, self.world)
        fill_new_positions(self.engine, self.world, self.config, self._shards[:begun])
        return state.next_phase(data_start=self.config.phases[begun].data_start)

    def _stop_early(self) -> None:
        """Save, unless the last step did; the batch that carried the request is the next start's first."""
        signals = [f"{name} on rank {rank}" for rank, name in enumerate(self.world.gather(self._stop.received)) if name]
        self._sync_metrics()
        self.state = self._checkpoints.settle(self.state)
        self._report_checkpoints()
        if self.world.is_main:
            told = (", ".join(signals), self.state.step)
            logger.info("stopped by %s at step %d, everything is saved: the same command continues", *told)

    def _step(self, batch: StepBatch, phase: PhaseConfig) -> StepResult:
        """Set the schedule and run forward, backward and update, timed by the meter and guarded by the watchdog."""
        # NVIDIA's recipe: LAMB's bias correction restarts with each phase; the others' do not.
        counter = self.state.phase_step if self.optimizer.bias_correction_over == "phase" else self.state.step
        settings = StepSettings(lr=learning_rate(phase, self.state.phase_step + 1), bias_step=counter + 1)
        # This rank's passes, which wait for others' weights at ZeRO 1 and above; then the part that all do together.
        with self._meter.timing("computing"):
            sums = accumulate(self.engine, batch, self.world)
        self._watchdog.wait_for_others()
        try:
            result = update(self.engine, batch, sums, settings, self.world)
        except LossScaleFloor as floor:  # on every rank alike
            step = self._drop_trouble(self.state)[1]
            tried = "and no smaller loss scale is left to try"
            diagnosis = rollback.divergence(self.run_dir, self.state, reason=floor.reason, tried=tried, step=step)
            raise_everywhere(self.world, diagnosis)
        if self.engine.average is not None and not result.is_skipped:
            self.engine.average.update(self.state.step + 1)
        self._watchdog.end_step()
        self._meter.count(batch)
        self._has_consumed = True
        self._stop.begin_saving()
        return result

    def _advance(self, batch: StepBatch, result: StepResult) -> None:
        """Advance the run's state past a batch, and warn if its loss was a spike."""
        loss = None if result.is_skipped else result.losses["loss"]
        self.state = self.state.after_batch(
            loss, taken=batch.ranges, positions=batch.positions_after, rule=self.config.rollback
        )
        spikes = self.state.spikes_in_a_row
        if loss is not None and spikes and self.world.is_main:
            logger.warning("spike: loss %.4f at step %d, %d in a row", loss, self.state.step, spikes)

    def _validate(self) -> None:
        """Score the held-out split."""
        self._watchdog.expect("validating")
        average = self.engine.average if self.config.validation.weights == "average" else None
        with self._meter.timing("pause"), average.in_use() if average else nullcontext():
            shards, most = self._shards[self.state.phase], self.config.validation.max_instances
            shape = self._shape(shards.train.statistics)
            metrics = validate(self.engine, shards.held_out, shape=shape, max_instances=most, world=self.world)
            phase = self.config.phases[self.state.phase]
            metrics |= run_probes(self.engine, self._probes, phase, self.world)
        is_last_phase = self.state.phase == len(self.config.phases) - 1
        self.state = self.state.after_validation(metrics, is_last_phase=is_last_phase)
        if self._writer is not None:
            self._writer.write(self.state.step, {"phase": self.state.phase + 1, **metrics})
            self._callbacks.call("on_validation", self.state.step, metrics, self._stop)
            logger.info("held out at step %d: %s", self.state.step, describe_scores(metrics))

    def _log(self, batch: StepBatch, result: StepResult, progress: Progress, *, is_first: bool) -> None:
        """Write the row of a step; every rank calls this, since the meter asks all of them."""
        # Collectives first: the other ranks leave below.
        perf, losses = self._meter.read(), result.losses
        rate = learning_rate(self.config.phases[self.state.phase], self.state.phase_step)
        ratios = self.optimizer.trust_ratios  # waits for the GPU: only on logged steps
        if self._writer is None:
            return
        epochs = self._shards[self.state.phase].train.epochs(self.state.positions)
        # The row of metrics.jsonl and TensorBoard.
        assert result.grad_norm is not None
        row: dict[str, Value] = {
            "phase": self.state.phase + 1,
            "phase_step": self.state.phase_step,
            **{f"train/{name}": value for name, value in losses.items()},
            "train/lr": rate,
            "train/global_batch_size": batch.num_instances,
            "train/masked_share": batch.num_masked / batch.num_tokens,
            "train/grad_norm": result.grad_norm,
            "train/loss_scale": self.engine.scale.value,
            "train/skipped_steps": self.state.skipped_steps,
            "train/rollbacks": self.state.rollbacks,
            "train/failed_checkpoints": self._checkpoints.failures,
            "perf/checkpoint_stall_s": self._checkpoints.stall_s,
            "progress/samples": self.state.samples,
            **{f"progress/epochs/{name}": value for name, value in epochs.items() if name},
            **perf,
        }
        if ratios:
            row["train/trust_ratio/all"] = list(ratios.values())
        self._writer.write(self.state.step, row)
        self._callbacks.call("on_step", self.state.step, row, self._stop)
        # The line of progress.
        masked_lm = f" (masked-LM {losses['mlm_loss']:.4f})" if losses["mlm_loss"] != losses["loss"] else ""
        sequences, tokens = perf["perf/sequences_per_s"], perf["perf/tokens_per_s"]
        left_s = None if is_first else seconds_left(self.config, self.state.phase, self.state.phase_step, sequences)
        progress.report(
            self.state.phase_step,
            f"loss {losses['loss']:.4f}{masked_lm}, lr {rate:.2e}, {pace(sequences)} sequences/s, "
            f"{pace(tokens)} tokens/s",
            left_s=left_s,
        )

    def _open_writer(self) -> MetricWriter | None:
        """Open the files of metrics after the present step, on rank 0."""
        if not self.world.is_main:
            return None
        writer = MetricWriter(
            self.run_dir, resumed_step=self.state.step, config=self.config, scores=SCORES, logging=self.config.logging
        )
        writer.note("replaced ops", self._replaced_ops, self.state.step)
        return writer

    def _needs_rollback(self) -> bool:
        dynamic = self.engine.scale.is_dynamic
        return rollback.is_due(self.state, self.config.rollback, has_dynamic_loss_scale=dynamic)

    def _roll_back(self) -> None:
        """Return to the last good checkpoint, leave out the data that is blamed, and record both at once."""
        failed, reason = self.state, rollback.describe_divergence(self.state, self.config.rollback)
        folder, step = self._drop_trouble(failed)
        stored = TrainerState.from_dict(load_checkpoint(folder, self.engine, self.world))
        # A checkpoint at the end of a phase: the trouble was at the beginning of the phase after it.
        if stored.is_phase_done(self.config) and not stored.is_done(self.config):
            stored = self._next_phase(stored)
        self.state = stored.after_rollback(failed)
        limit = self.config.rollback.max_in_a_row
        if self.state.rollbacks_in_a_row > limit:
            tried = f"after {limit} rollbacks to step {step}, each without the data before"
            diagnosis = rollback.divergence(self.run_dir, failed, reason=reason, tried=tried, step=step)
            raise_everywhere(self.world, diagnosis)
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            told = (self.state.rollbacks, reason, failed.step, self.state.step, failed.bad_data)
            logger.warning("rollback %d: %s at step %d; continuing at step %d without instances %s", *told)
        # The checkpoint is written again with the ranges to leave out: a start that is killed now must not read them.
        self._writer = self._open_writer()
        self.save()

    def _drop_trouble(self, failed: TrainerState) -> tuple[Path, int]:
        self._checkpoints.wait()  # a write under way could finish a checkpoint that is deleted next
        return run_on_main_rank(self.world, lambda: rollback.drop_trouble(checkpoints_dir(self.run_dir), failed))
