from megabert.settings.config.loading import load_run_config
from megabert.settings.config.run import is_science


def test_disk_holds_what_is_kept_and_what_is_written():
    """The newest three, the end of the first phase, the best, and the one being written."""
    assert load_run_config("bert_large").most_checkpoints == 3 + 1 + 1 + 1
    for_good = {"checkpoint": {"keep_every_steps": 1000}}  # of 8,601 steps
    assert load_run_config("bert_large", flags=for_good).most_checkpoints == 6 + 9


def test_fields_that_make_another_experiment_are_not_free_on_resume():
    fork = ("fork", "phases.0.steps", "model.hidden_size", "phases.1.new_positions", "phases.0.position_offset")
    free = ("rollback.spike_ratio", "phases.1.data", "checkpoint.every_steps", "engine")
    assert [is_science(path) for path in (*fork, *free)] == [True] * len(fork) + [False] * len(free)
