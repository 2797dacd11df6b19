from pathlib import Path

from megabert.data.order import PositionRange
from megabert.settings.config.run import RollbackConfig
from megabert.training.recovery.rollback import describe_divergence, divergence, is_due
from megabert.training.state import TrainerState

BATCHES = [(PositionRange(0, start, start + 4),) for start in range(0, 20, 4)]


def blamed_after(*losses):
    """Return the data that is blamed after batches of these losses, 1 as usual; None is a batch that was skipped."""
    state, rule = TrainerState(recent_losses=(1.0,) * 50), RollbackConfig(spike_ratio=1.5)
    for batch, loss in zip(BATCHES, losses, strict=False):
        state = state.after_batch(loss, taken={"abc": batch}, positions={}, rule=rule)
    return state.bad_data


def test_skipped_batches_are_blamed_and_a_good_one_clears_them():
    bad = blamed_after(1.0, None, None)
    assert bad.ranges == {"abc": (*BATCHES[1], *BATCHES[2])}
    assert str(bad) == "epoch 0: 4 to 7, epoch 0: 8 to 11"
    assert blamed_after(1.0, None, None, 1.0).ranges == {}


def test_the_batch_before_a_spike_is_blamed_as_well():
    assert blamed_after(1.0, 1.0, 9.0, 9.0).ranges == {"abc": (*BATCHES[1], *BATCHES[2], *BATCHES[3])}


def test_a_dynamic_loss_scale_skips_on_purpose():
    rule = RollbackConfig(after_skips=3)
    state = TrainerState(skipped_in_a_row=3)
    assert is_due(state, rule, has_dynamic_loss_scale=False)
    assert not is_due(state, rule, has_dynamic_loss_scale=True)
    assert not is_due(TrainerState(skipped_in_a_row=2), rule, has_dynamic_loss_scale=False)


def test_spikes_send_back_only_where_the_rule_is_on():
    state = TrainerState(spikes_in_a_row=5)
    assert not is_due(state, RollbackConfig(), has_dynamic_loss_scale=True)
    rule = RollbackConfig(spike_ratio=1.5)
    assert is_due(state, rule, has_dynamic_loss_scale=True)
    assert describe_divergence(state, rule) == "5 losses in a row were above 1.5 times their running median"


def test_diagnosis_names_the_command_that_goes_on():
    state = TrainerState(step=70, phase=1)
    error = divergence(Path("runs/a"), state, reason="numbers went wrong", tried="after 3 rollbacks", step=60)
    assert "--fork runs/a@60 --run-dir NEW --phases.1.learning_rate LOWER" in str(error)
