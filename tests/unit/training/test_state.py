import json
from dataclasses import replace

import pytest

from megabert.data.order import BEGINNING, DataPosition, EpochOrder, PositionRange
from megabert.foundation.errors import CheckpointError
from megabert.settings.config.loading import load_run_config
from megabert.settings.config.run import RollbackConfig
from megabert.training.state import BlamedData, MicroBatchTokens, TrainerState

CONFIG = load_run_config("debug", flags={"phases": {"0": {"steps": 2}, "1": {"steps": 1}}})
NO_SPIKES = RollbackConfig()
RANGES = (PositionRange(0, 4, 8),)
TAKEN = {"a": RANGES}
FLAGS = {
    "phases": {"0": {"steps": 30}},
    "logging": {"every_steps": 10},
    "validation": {"every_steps": 20},
    "checkpoint": {"every_steps": 15},
    "rollback": {"spike_ratio": 2.0, "spike_steps": 3},
}
SCHEDULE = load_run_config("debug", flags=FLAGS)


def after(state: TrainerState, updates: int) -> TrainerState:
    (key,) = state.data_sha256[state.phase] if state.data_sha256 else "a"
    for _ in range(updates):
        positions = {**state.positions, key: state.positions.get(key, BEGINNING).take(4, 100)[1]}
        state = state.after_batch(1.0, taken=TAKEN, positions=positions, rule=NO_SPIKES)
    return state


def after_loss(state: TrainerState, loss: float | None, rule: RollbackConfig) -> TrainerState:
    return state.after_batch(loss, taken=TAKEN, positions={"a": DataPosition(0, 8)}, rule=rule)


def state_at(step: int, **fields) -> TrainerState:
    return replace(TrainerState(), step=step, phase_step=step, **fields)


def test_state_survives_json():
    state = after(
        TrainerState(budgets=MicroBatchTokens(tokens=(128, 512), found_for="cpu"), data_sha256=(("a",), ("b",))), 3
    )
    assert TrainerState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_skipped_batch_holds_the_schedule_but_consumes_data():
    state = after_loss(after(TrainerState(), 1), None, NO_SPIKES)
    assert (state.step, state.phase_step, state.batches, state.samples) == (1, 1, 2, 8)
    assert (state.skipped_steps, state.skipped_in_a_row) == (1, 1)
    assert (after(state, 1).skipped_steps, after(state, 1).skipped_in_a_row) == (1, 0)


def test_first_batch_of_a_phase_is_known_whatever_was_skipped():
    state = after(after_loss(after(TrainerState(data_sha256=(("a",), ("b",))), 1), None, NO_SPIKES), 1)
    assert (state.phase_skipped, state.first_batch) == (1, 0)
    state = state.next_phase()
    assert (state.phase_skipped, state.first_batch) == (0, 3)
    state = after_loss(after(state, 2), None, NO_SPIKES)
    assert (state.batches, state.first_batch) == (6, 3)
    assert TrainerState.from_dict(json.loads(json.dumps(state.to_dict()))).first_batch == 3


def test_phases_follow_each_other():
    state = after(TrainerState(data_sha256=(("a",), ("b",))), 2)
    assert state.is_phase_done(CONFIG)
    assert not state.is_done(CONFIG)
    state = state.next_phase()
    assert (state.phase, state.phase_step, state.step, [*state.positions]) == (1, 0, 2, ["a"])
    assert after(state, 1).is_done(CONFIG)


def test_no_instance_comes_twice_before_an_epoch_ends_over_phases():
    phases = [
        {"steps": 7, "global_batch_size": 60, "initial_batch_size": 5, "batch_warmup_steps": 4},
        {"steps": 3, "global_batch_size": 90},  # other shards in between
        {"steps": 9, "global_batch_size": 33},
        {"steps": 5, "global_batch_size": 101},
    ]
    config = load_run_config("debug", flags={"phases": [{**phase, "learning_rate": 1.0} for phase in phases]})
    state = TrainerState(data_sha256=(("a",), ("b",), ("a",), ("a",)))
    rows = {"a": 500, "b": 200}
    read: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    while not state.is_done(config):
        if state.is_phase_done(config):
            state = state.next_phase()
        (shards,) = state.data_sha256[state.phase]
        size = config.phases[state.phase].batch_size(state.batches - state.first_batch)
        taken, position = state.positions.get(shards, BEGINNING).take(size, rows[shards])
        for epoch, start, stop in taken:
            read[shards] += [(epoch, int(row)) for row in EpochOrder(rows[shards], 3, epoch).rows(start, stop)]
        # Every eleventh batch is skipped: its instances are gone, and the step is made with the next ones.
        loss = None if state.batches % 11 == 5 else 1.0
        positions = {**state.positions, shards: position}
        state = state.after_batch(loss, taken={shards: taken}, positions=positions, rule=NO_SPIKES)
    for shards, pairs in read.items():
        assert len(set(pairs)) == len(pairs), "no instance twice in an epoch"
        whole, part = divmod(len(pairs), rows[shards])
        assert [epoch for epoch, _ in pairs] == [e for e in range(whole) for _ in range(rows[shards])] + [whole] * part
    assert len(read["a"]) > 2 * rows["a"]


def test_phase_that_asks_for_it_begins_again():
    state = after(TrainerState(data_sha256=(("a",), ("a",))), 2)
    assert state.next_phase(data_start="beginning").positions == {"a": BEGINNING}
    skipping = replace(state, positions={"a": state.positions["a"].skipping(RANGES)})
    assert skipping.next_phase(data_start="beginning").positions == {"a": DataPosition(0, 0, RANGES)}


def test_steps_left_are_those_of_the_present_phase_and_the_later_ones():
    state = after(TrainerState(data_sha256=(("a",), ("b",))), 1)
    assert state.steps_left(CONFIG) == [1, 1]
    assert after(after(state, 1).next_phase(), 1).steps_left(CONFIG) == [0, 0]


def test_ends_of_the_phases_before_are_known():
    flags = {"phases": [{"steps": steps, "global_batch_size": 1, "learning_rate": 1.0} for steps in (2, 3, 4)]}
    config, state = load_run_config("debug", flags=flags), after(TrainerState(data_sha256=(("a",), ("b",), ("c",))), 2)
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
    failed = replace(stored, skipped_steps=10, bad_data=BlamedData({"a": bad}))
    first = stored.after_rollback(failed)
    assert (first.step, first.skipped_steps, first.skipped_in_a_row) == (3, 10, 0)
    assert first.positions == {"a": stored.positions["a"].skipping(bad)}
    assert (first.rollbacks, first.rollbacks_in_a_row) == (1, 1)
    again = stored.after_rollback(replace(first, bad_data=failed.bad_data))  # the checkpoint was not written again
    assert (again.rollbacks, again.rollbacks_in_a_row) == (2, 2)
    other = replace(first, bad_data=BlamedData({"a": (PositionRange(0, 90, 100),)}))
    both = stored.positions["a"].skipping((*bad, PositionRange(0, 90, 100)))
    assert stored.after_rollback(other).positions == {"a": both}
    later = after(first, 2).after_rollback(after(first, 4))
    assert (later.rollbacks, later.rollbacks_in_a_row) == (2, 1)
    assert TrainerState.from_dict(json.loads(json.dumps(later.to_dict()))) == later


def test_rollback_leaves_data_out_of_the_build_that_they_are_of():
    stored = TrainerState(data_sha256=(("a", "b"),), positions={"a": DataPosition(0, 8), "b": DataPosition(0, 3)})
    bad = BlamedData({"b": (PositionRange(0, 3, 9),), "c": (PositionRange(0, 0, 5),)})
    positions = {"a": DataPosition(0, 90), "b": DataPosition(0, 12, (PositionRange(0, 9, 12),))}
    state = stored.after_rollback(replace(stored, positions=positions, bad_data=bad))
    assert state.positions == {
        "a": DataPosition(0, 8),
        "b": DataPosition(0, 3, (PositionRange(0, 3, 12),)),
        "c": DataPosition(0, 0, (PositionRange(0, 0, 5),)),
    }, "c is of a later phase, which the checkpoint has not reached"


def test_next_phase_continues_each_source_or_begins_it_again():
    positions = {"a": DataPosition(1, 8), "b": DataPosition(0, 3), "c": DataPosition(2, 1)}
    state = TrainerState(data_sha256=(("a", "b"), ("b", "c", "new")), positions=positions)
    assert state.next_phase().positions == positions
    begun = state.next_phase(data_start="beginning").positions
    assert begun == {"a": DataPosition(1, 8), "b": BEGINNING, "c": BEGINNING}


def test_loss_above_its_running_median_is_a_spike_and_not_part_of_it():
    rule = RollbackConfig(spike_ratio=2, spike_window=4)
    state = TrainerState()
    for loss in (1.0, 9.0):  # nothing is a spike before half the window is known
        state = after_loss(state, loss, rule)
    assert (state.recent_losses, state.spikes_in_a_row) == ((1.0, 9.0), 0)
    for loss in (1.0, 1.0, 1.0, 1.0):
        state = after_loss(state, loss, rule)
    assert state.recent_losses == (1.0, 1.0, 1.0, 1.0)
    spiking = after_loss(after_loss(state, 2.1, rule), 50.0, rule)
    assert (spiking.recent_losses, spiking.spikes_in_a_row) == (state.recent_losses, 2)
    assert after_loss(spiking, 1.9, rule).spikes_in_a_row == 0
    assert spiking.bad_data.ranges == {"a": RANGES * 3}
    assert TrainerState.from_dict(json.loads(json.dumps(spiking.to_dict()))) == spiking


def test_phase_switch_is_no_spike():
    rule = RollbackConfig(spike_ratio=1.1, spike_window=2)
    state = after_loss(TrainerState(data_sha256=(("a",), ("b",))), 1.0, rule).next_phase()
    assert after_loss(state, 8.0, rule).spikes_in_a_row == 0


def test_without_a_rule_nothing_is_a_spike_and_nothing_is_kept():
    state = state_at(3, spikes_in_a_row=2, recent_losses=(1.0, 1.0))  # of an earlier start, which had the rule
    for loss in [1.0] * 100 + [1e9]:
        state = after_loss(state, loss, NO_SPIKES)
    assert (state.recent_losses, state.spikes_in_a_row, state.bad_data) == ((), 0, BlamedData())


@pytest.mark.parametrize(
    "position", [{}, {"epoch": 1, "offset": -1, "skipped": []}, {"epoch": 1, "offset": 0, "skipped": [[1, 2]]}]
)
def test_damaged_state_is_refused_with_the_field(position):
    with pytest.raises(CheckpointError, match=r"trainer state: damaged or edited \(positions\.a\..*another checkpoint"):
        TrainerState.from_dict(TrainerState().to_dict() | {"positions": {"a": position}})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"best_loss": ...}, "lacks best_loss"),
        ({"besst_step": 3}, "has an unknown besst_step"),
        ({"phase": 2}, "phase=2 and the shards of 2 phases, but the run has 2, counted from 0"),
        ({"data_sha256": [["a"]]}, "phase=0 and the shards of 1 phases, but the run has 2"),
        ({"phase_step": -1}, "phase_step"),
        ({"batches": 10**20}, "batches"),
        ({"positions": {"a": {"epoch": 10**20, "offset": 0, "skipped": []}}}, r"positions\.a\.epoch"),
    ],
)
def test_state_with_other_fields_or_phases_than_the_run_is_refused(change, what):
    values = TrainerState(data_sha256=(("a",), ("b",))).to_dict() | change
    values = {name: value for name, value in values.items() if value is not ...}
    with pytest.raises(CheckpointError, match=rf"trainer state: damaged or edited \({what}.*another checkpoint"):
        TrainerState.from_dict(values, load_run_config("debug"))


def test_state_that_is_written_has_every_field_as_plain_values():
    bad = BlamedData(ranges=TAKEN)
    state = replace(after(TrainerState(), 1), bad_data=bad, metrics={"eval/loss": 1.5}, best_loss=1.5)
    assert list(state.to_dict()) == list(vars(state))
    assert state.to_dict()["positions"] == {"a": {"epoch": 0, "offset": 4, "skipped": []}}
    assert state.to_dict()["bad_data"] == {"ranges": {"a": [[0, 4, 8]]}, "last_good": {}}
    assert state.to_dict()["budgets"] == {"tokens": [], "found_for": ""}


def test_intervals_and_ends_of_phases():
    steps = range(1, 31)
    assert [step for step in steps if state_at(step).is_log_due(SCHEDULE)] == [1, 10, 20, 30]
    assert [step for step in steps if state_at(step).is_validation_due(SCHEDULE)] == [20, 30]
    assert [step for step in steps if state_at(step).is_checkpoint_due(SCHEDULE)] == [15, 30]


@pytest.mark.parametrize(
    ("step", "fields", "is_due"),
    [
        (20, {"best_step": 20}, True),
        (20, {"best_step": 10}, False),
        (15, {"spikes_in_a_row": 1}, False),  # saved only if a phase ends with the spike, or if the state is the best
        (30, {"spikes_in_a_row": 1}, True),
        (20, {"spikes_in_a_row": 1, "best_step": 20, "best_loss": 1.0}, True),
        (30, {"spikes_in_a_row": 3}, False),  # a rollback is about to happen
    ],
)
def test_best_state_is_saved_at_once_and_a_spike_seldom(step, fields, is_due):
    assert state_at(step, **fields).is_checkpoint_due(SCHEDULE) == is_due
