from dataclasses import replace

import pytest

from megabert.data.order import BEGINNING, DataPosition
from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.settings.config.loading import load_run_config, split_fork
from megabert.training.run.folder import record_run
from megabert.training.run.start import find_fork, state_after_fork
from megabert.training.state import TrainerState

CONFIG = load_run_config("debug", flags={"phases": {"0": {"steps": 10}, "1": {"steps": 5}}, "fork": "runs/a@12"})
STORED = TrainerState(
    step=12,
    phase=1,
    phase_step=2,
    batches=13,
    samples=99,
    positions={"b": DataPosition(0, 40)},
    skipped_steps=1,
    rollbacks=2,
    best_step=11,
    best_loss=3.0,
    data_sha256=(("a",), ("b",)),
)


def test_fork_keeps_the_place_and_leaves_the_other_runs_troubles_behind():
    state = state_after_fork(STORED, CONFIG, data_sha256=(("a",), ("b",)))
    assert (state.step, state.phase, state.phase_step, state.batches, state.samples) == (12, 1, 2, 13, 99)
    assert state.positions == {"b": DataPosition(0, 40)}
    assert (state.best_step, state.rollbacks, state.skipped_steps) == (None, 0, 0)


def test_other_shards_are_read_from_their_beginning():
    state = state_after_fork(STORED, CONFIG, data_sha256=(("a",), ("c",)))
    assert "c" not in state.positions
    assert state_after_fork(STORED, CONFIG, data_sha256=(("c",), ("b",))).positions["b"] == DataPosition(0, 40)


def test_fork_is_a_new_run_whose_phases_share_data():
    end = replace(STORED, step=10, phase=0, phase_step=10, data_sha256=(("b",), ("b",)))
    assert state_after_fork(end, CONFIG, data_sha256=(("b",), ("b",))).next_phase().positions == STORED.positions
    assert "a" not in state_after_fork(end, CONFIG, data_sha256=(("b",), ("a",))).next_phase().positions


def test_fork_knows_where_earlier_phases_left_their_shards():
    flags = {"phases": [{"steps": steps, "global_batch_size": 1, "learning_rate": 1.0} for steps in (10, 5, 4)]}
    config = load_run_config("debug", flags={**flags, "fork": "runs/a@12"})
    known = replace(STORED, positions={"a": DataPosition(0, 30), "b": DataPosition(0, 40)})
    state = state_after_fork(known, config, data_sha256=(("a",), ("b",), ("a",))).next_phase()
    assert state.positions == known.positions
    again = replace(config, phases=(*config.phases[:2], replace(config.phases[2], data_start="beginning")))
    state = state_after_fork(known, again, data_sha256=(("a",), ("b",), ("a",)))
    assert state.next_phase(data_start="beginning").positions == {"a": BEGINNING, "b": DataPosition(0, 40)}


def test_fork_takes_up_a_new_source_and_leaves_the_old_one_where_it_was():
    state = state_after_fork(STORED, CONFIG, data_sha256=(("a",), ("b", "new")))
    assert state.positions == {"b": DataPosition(0, 40)}, "the new source is missing: it begins at its first instance"


def test_end_of_a_phase_can_be_forked_to_begin_the_next_one_again():
    end = replace(STORED, step=10, phase=0, phase_step=10)
    state = state_after_fork(end, CONFIG, data_sha256=(("a",), ("b",)))
    assert state.is_phase_done(CONFIG)
    assert (state.next_phase().phase, state.next_phase().step) == (1, 10)


@pytest.mark.parametrize("phases", [CONFIG.phases[:1], (CONFIG.phases[0], replace(CONFIG.phases[1], steps=2))])
def test_nothing_left_to_do_is_an_error(phases):
    with pytest.raises(ConfigError, match=r"runs/a@12: that checkpoint is at step 2 of phase 2"):
        state_after_fork(STORED, replace(CONFIG, phases=phases), data_sha256=(("a",), ("b",)))


def test_missing_run_and_missing_step_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere: has no config\.yaml"):
        find_fork(f"{tmp_path}/nowhere@3", CONFIG)
    record_run(tmp_path, CONFIG, {})
    (tmp_path / "checkpoints" / "step_00000005").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"no such checkpoint.*\[5\]"):
        find_fork(f"{tmp_path}@3", CONFIG)


def test_fork_of_muon_stays_with_muon_whose_matrices_lack_second_moments(tmp_path):
    muon = load_run_config("debug", flags={"optimizer": {"name": "muon"}})
    for name, source in (("muon", muon), ("lamb", CONFIG)):
        record_run(tmp_path / name, source, {})
    with pytest.raises(ConfigError, match=r"muon@3: that run has optimizer.name=muon.*--init-from"):
        find_fork(f"{tmp_path / 'muon'}@3", CONFIG)
    for name, config in (("muon", muon), ("lamb", muon), ("lamb", CONFIG)):
        with pytest.raises(CheckpointError, match="no checkpoint"):
            find_fork(f"{tmp_path / name}@3", config)


def test_fork_between_a_packages_optimizer_and_another_is_refused(tmp_path):
    mine = load_run_config("debug", flags={"optimizer": {"name": "mine", "package": "my-optimizers 0.1"}})
    for name, source, config in (("mine", mine, CONFIG), ("lamb", CONFIG, mine)):
        record_run(tmp_path / name, source, {})
        with pytest.raises(
            ConfigError, match=rf"{name}@3: that run has optimizer.name={name}, which keeps other moments"
        ):
            find_fork(f"{tmp_path / name}@3", config)


def test_form_of_a_fork():
    assert split_fork("runs/a@b@30")[1] == 30
    for wrong in ("runs/a", "runs/a@last", "@3"):
        with pytest.raises(ConfigError, match="RUN@STEP"):
            split_fork(wrong)
        with pytest.raises(ConfigError, match="fork"):
            load_run_config("debug", flags={"fork": wrong})
