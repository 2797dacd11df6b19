from megabert.config.run import CheckpointConfig, is_science


def test_checkpoints_kept_for_good_count():
    assert CheckpointConfig(keep_last=3).most_at_a_time(8601) == 5
    assert CheckpointConfig(keep_last=3, keep_every_steps=1000).most_at_a_time(8601) == 5 + 9


def test_rules_for_rolling_back_are_free_on_resume_and_a_fork_is_not():
    assert not is_science("rollback.spike_ratio")
    assert is_science("fork")
