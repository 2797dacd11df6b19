from dataclasses import replace

from megabert.config.recipes import load_run_config
from megabert.training.cadence import Cadence
from megabert.training.state import TrainerState

FLAGS = {
    "phases": {"0": {"steps": 30}},
    "logging": {"every_steps": 10},
    "validation": {"every_steps": 20},
    "checkpoint": {"every_steps": 15},
    "rollback": {"spike_ratio": 2.0, "spike_steps": 3},
}
CADENCE = Cadence(load_run_config("debug", flags=FLAGS))


def at(step: int, **fields) -> TrainerState:
    return replace(TrainerState(), step=step, phase_step=step, **fields)


def test_intervals_and_ends_of_phases():
    steps = range(1, 31)
    assert [step for step in steps if CADENCE.is_log_due(at(step))] == [1, 10, 20, 30]
    assert [step for step in steps if CADENCE.is_validation_due(at(step))] == [20, 30]
    assert [step for step in steps if CADENCE.is_checkpoint_due(at(step))] == [15, 30]


def test_best_state_is_saved_at_once():
    assert CADENCE.is_checkpoint_due(at(20, best_step=20))
    assert not CADENCE.is_checkpoint_due(at(20, best_step=10))


def test_spike_is_saved_only_where_a_phase_ends_with_it():
    assert not CADENCE.is_checkpoint_due(at(15, spikes_in_a_row=1))
    assert CADENCE.is_checkpoint_due(at(30, spikes_in_a_row=1))
    assert not CADENCE.is_checkpoint_due(at(30, spikes_in_a_row=3)), "a rollback is about to happen"
