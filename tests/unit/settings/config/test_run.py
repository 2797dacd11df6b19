from megabert.settings.config.loading import load_run_config
from megabert.settings.config.run import is_science


def test_disk_holds_what_is_kept_and_what_is_written():
    """The newest three, the end of the first phase, the best, and the one being written."""
    assert load_run_config("bert_large").most_checkpoints == 3 + 1 + 1 + 1
    for_good = {"checkpoint": {"keep_every_steps": 1000}}  # of 8,601 steps
    assert load_run_config("bert_large", flags=for_good).most_checkpoints == 6 + 9


def test_rules_for_rolling_back_are_free_on_resume_and_a_fork_is_not():
    assert not is_science("rollback.spike_ratio")
    assert is_science("fork")
