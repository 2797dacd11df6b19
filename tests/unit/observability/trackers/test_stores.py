"""trackio and wandb themselves, offline: what their own readers find is what ``metrics.jsonl`` holds."""

import errno
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from support.tracker_stores import expected_points, read_trackio, read_wandb

from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_write
from megabert.observability.metrics import MetricWriter
from megabert.observability.trackers import stores
from megabert.observability.trackers.process import run_id
from megabert.settings.config.loading import load_run_config
from megabert.settings.config.run import LoggingConfig
from megabert.training.run.folder import record_run


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A run folder with a configuration, and trackio's own folder beside it; rows must not go elsewhere."""
    for name in ("trackio", "wandb"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install 'megabert[{name}]'")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_MODE", "online")
    (tmp_path / "run").mkdir()
    atomic_write(tmp_path / "run" / "config.yaml", "seed: 42\nphases:\n- max_seq_length: 64\nengine: null\n")
    return tmp_path / "run"


def write(run_dir, resumed_step, steps, *, loss=1.0, trackers=("trackio", "wandb")):
    logging = LoggingConfig(trackers=trackers, tracker_project="tests")
    writer = MetricWriter(run_dir, resumed_step=resumed_step, logging=logging)
    for step in steps:
        writer.write(step, {"phase": 1, "train/loss": loss / step, "train/trust_ratio/all": [1.0, 2.0]})
        if step % 3 == 0:
            writer.write(step, {"phase": 1, "eval/mlm_loss": 2.0 / step})
    writer.close()


def test_stores_hold_the_rows_of_a_run_that_was_set_back(begun, caplog):
    write(begun, 0, range(1, 8))
    write(begun, 5, range(6, 10), loss=3.0)  # steps 6 and 7 are made again, with other values
    assert "WARNING" not in {record.levelname for record in caplog.records}, caplog.text
    expected = expected_points(begun)
    assert sorted(expected) == list(range(1, 10))
    assert expected[6]["train/loss"] == 0.5
    points, config = read_wandb(begun)
    assert points == expected
    assert {name: config[name] for name in ("seed", "phases.0.max_seq_length")} == {
        "seed": 42,
        "phases.0.max_seq_length": 64,
    }
    runs, configs = read_trackio("tests")
    assert runs == {run_id(begun): expected}
    assert configs[run_id(begun)]["phases.0.max_seq_length"] == 64


def test_full_disk_under_wandb_is_an_error(tmp_path, monkeypatch):
    session = SimpleNamespace(step=0, log=lambda *_, **__: None, finish=lambda: None)  # drops rows and reports nothing
    library = SimpleNamespace(init=lambda **_: session, Settings=lambda **_: None)
    monkeypatch.setattr(stores, "import_module", lambda _: library)
    monkeypatch.setattr(stores, "LOOK_S", -1)
    run = stores.TrackedRun(name="r", run_id="0" * 16, project="p", is_offline=True, folder=tmp_path, config={})
    (tmp_path / "wandb").mkdir()
    store = stores.Wandb(run)
    store.log(1, {"train/loss": 1.0})
    assert list((tmp_path / "wandb").iterdir()) == [], "the look leaves nothing"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stores, "write_durably", full)
    for work in (lambda: store.log(2, {"train/loss": 1.0}), store.finish):
        with pytest.raises(DataError, match="no space left"):
            work()


def test_fork_has_a_curve_of_its_own(begun, tmp_path):
    fork = tmp_path / "fork"
    write(begun, 0, [1, 2], trackers=("trackio",))
    write(fork, 1, [2, 3], trackers=("trackio",))
    runs, _ = read_trackio("tests")
    assert {name: sorted(points) for name, points in runs.items()} == {run_id(begun): [1, 2], run_id(fork): [2, 3]}


def test_configuration_of_a_run_can_be_read(tmp_path):
    from megabert.observability.trackers.follow import _read_config

    config = load_run_config("debug")
    record_run(tmp_path, config, {})
    fields = _read_config(tmp_path / "config.yaml")
    assert fields["phases.0.max_seq_length"] == config.phases[0].max_seq_length
    assert fields["seed"] == 42
    assert _read_config(tmp_path / "missing.yaml") == {}
