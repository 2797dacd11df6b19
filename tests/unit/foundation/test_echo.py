"""A failure of one rank ends every rank, and one of them reports it."""

import pickle

import pytest

from megabert.distributed.environments import before_ranks_meet
from megabert.foundation.errors import CheckpointError, ConfigError, Echo, cause_of


def test_echo_travels_between_ranks_with_its_cause():
    cause = CheckpointError("torn", see="every-checkpoint-is-damaged")
    echo = pickle.loads(pickle.dumps(Echo(cause)))
    assert (str(echo), echo.exit_code) == (str(cause), 4)
    assert isinstance(cause_of(echo), CheckpointError)
    assert cause_of(cause) is cause


@pytest.mark.parametrize(("rank", "kind"), [("0", ConfigError), ("1", Echo)])
def test_rank_0_reports_a_wrong_configuration_for_all(monkeypatch, rank, kind):
    for name, value in (("RANK", rank), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(kind, match="no such field"), before_ranks_meet():
        raise ConfigError("no such field")


def test_other_ranks_are_silent_about_a_wrong_flag(monkeypatch, megabert):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert not megabert("pretrain", "--recipe", "debug", "--seeed", "1", code=2).err
