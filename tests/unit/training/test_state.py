import json

from megabert.config.recipes import load_run_config
from megabert.config.run import RollbackConfig
from megabert.data.position import DataPosition, PositionRange
from megabert.training.micro_batch_size import Budgets
from megabert.training.state import TrainerState

CONFIG = load_run_config("debug", flags={"phases": {"0": {"steps": 2}, "1": {"steps": 1}}})


TAKEN = (PositionRange(0, 4, 8),)


def after(state: TrainerState, updates: int) -> TrainerState:
    for _ in range(updates):
        state = state.after_update(samples=4, position=state.position.take(4, 100)[1])
    return state


def test_state_survives_json():
    state = after(TrainerState(budgets=Budgets(tokens=(128, 512), found_for="cpu"), data_sha256=("a", "b")), 3)
    assert TrainerState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_skipped_batch_holds_the_schedule_but_consumes_data():
    state = after(TrainerState(), 1).after_skip(TAKEN, samples=4, position=DataPosition(0, 8))
    assert (state.step, state.phase_step, state.batches, state.samples) == (1, 1, 2, 8)
    assert (state.skipped_steps, state.skipped_in_a_row) == (1, 1)
    assert after(state, 1).skipped_in_a_row == 0
    assert after(state, 1).skipped_steps == 1


def test_phases_follow_each_other():
    state = after(TrainerState(), 2)
    assert state.is_phase_done(CONFIG)
    assert not state.is_done(CONFIG)
    state = state.next_phase()
    assert (state.phase, state.phase_step, state.step, state.position) == (1, 0, 2, DataPosition())
    assert after(state, 1).is_done(CONFIG)


def test_ends_of_the_phases_before_are_known():
    flags = {"phases": [{"steps": steps, "global_batch_size": 1, "learning_rate": 1.0} for steps in (2, 3, 4)]}
    config, state = load_run_config("debug", flags=flags), after(TrainerState(), 2)
    assert state.ends_of_phases(config) == set()
    state = after(state.next_phase(), 3)
    assert state.ends_of_phases(config) == {2}
    assert after(state.next_phase(), 1).ends_of_phases(config) == {2, 5}


def test_best_is_the_lowest_finite_loss_of_the_last_phase():
    state = after(TrainerState(), 1)
    assert state.after_validation({"eval/loss": 1.0}, is_last_phase=False).best_step is None
    state = state.after_validation({"eval/loss": float("nan")}, is_last_phase=True)
    assert state.best_step is None
    state = state.after_validation({"eval/loss": 2.0}, is_last_phase=True)
    assert (state.best_step, state.best_loss, state.metrics_step) == (1, 2.0, 1)
    later = after(state, 1).after_validation({"eval/loss": 3.0}, is_last_phase=True)
    assert (later.best_step, later.metrics_step) == (1, 2)


def test_rollback_leaves_data_out_and_counts_returns_to_one_checkpoint():
    stored = after(TrainerState(), 3)
    bad = (PositionRange(0, 40, 80),)
    first = stored.after_rollback(bad, skipped_steps=10)
    assert (first.step, first.skipped_steps, first.skipped_in_a_row) == (3, 10, 0)
    assert first.position == stored.position.skipping(bad)
    assert (first.rollbacks, first.rollbacks_in_a_row) == (1, 1)
    assert first.after_rollback(bad, skipped_steps=20).rollbacks_in_a_row == 2
    later = after(first, 2).after_rollback(bad, skipped_steps=30)
    assert (later.rollbacks, later.rollbacks_in_a_row) == (2, 1)
    assert TrainerState.from_dict(json.loads(json.dumps(later.to_dict()))) == later


def test_loss_above_its_running_median_is_a_spike_and_not_part_of_it():
    rule = RollbackConfig(spike_ratio=2, spike_window=4)
    state = TrainerState()
    for loss in (9.0, 1.0):  # nothing is a spike before half the window is known
        state = state.after_loss(loss, rule, TAKEN)
    assert (state.recent_losses, state.spikes_in_a_row) == ((9.0, 1.0), 0)
    for loss in (1.0, 1.0, 1.0):
        state = state.after_loss(loss, rule, TAKEN)
    assert state.recent_losses == (1.0, 1.0, 1.0, 1.0)
    spiking = state.after_loss(2.1, rule, TAKEN).after_loss(50.0, rule, TAKEN)
    assert (spiking.recent_losses, spiking.spikes_in_a_row) == (state.recent_losses, 2)
    assert spiking.after_loss(1.9, rule, TAKEN).spikes_in_a_row == 0
    assert spiking.bad_data.ranges == (*TAKEN, *TAKEN, *TAKEN)
    assert TrainerState.from_dict(json.loads(json.dumps(spiking.to_dict()))) == spiking


def test_phase_switch_is_no_spike():
    rule = RollbackConfig(spike_ratio=1.1, spike_window=2)
    state = after(TrainerState(), 1).after_loss(1.0, rule, TAKEN).next_phase()
    assert state.after_loss(8.0, rule, TAKEN).spikes_in_a_row == 0


def test_without_a_rule_nothing_is_a_spike_and_nothing_is_kept():
    state = TrainerState()
    for loss in [1.0] * 100 + [1e9]:
        state = state.after_loss(loss, RollbackConfig(), TAKEN)
    assert state == TrainerState()
