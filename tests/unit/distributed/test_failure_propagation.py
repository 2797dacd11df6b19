"""Which error each rank ends with: the first failing rank its own, every other rank an echo of it."""

import contextlib
import threading

import pytest
import torch.distributed as dist

from megabert.distributed import failure_propagation as first_failure
from megabert.distributed.failure_propagation import FirstFailure, RankFailed
from megabert.foundation.errors import CheckpointError, DataError, Echo

LOST = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:34688.\nmore")


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(first_failure, "_SILENCE_S", 0.05)


@pytest.fixture
def ranks():
    store = dist.HashStore()
    return [FirstFailure(store, rank, 3) for rank in range(3)]


def test_first_error_is_its_ranks_own_and_all_others_echo_it(ranks):
    torn = DataError("torn shard")
    assert ranks[1].report(torn) is torn
    for other in (ranks[0], ranks[2]):
        echo = other.report(LOST)
        assert isinstance(echo, RankFailed)
        assert isinstance(echo, Echo)
        assert (echo.rank, echo.exit_code, str(echo)) == (1, 3, "DataError: torn shard")
    assert isinstance(ranks[0].report(CheckpointError("later")), RankFailed)


def test_bug_is_reported_by_its_rank_with_code_1(ranks):
    bug = KeyError("x")
    assert ranks[2].report(bug) is bug
    assert ranks[0].report(LOST).exit_code == 1


def test_an_error_that_follows_from_another_waits_for_that_one(ranks, monkeypatch):
    monkeypatch.setattr(first_failure, "_SILENCE_S", 20.0)
    echo = Echo(DataError("the loader of another rank failed"))
    threading.Timer(0.2, lambda: ranks[1].report(CheckpointError("the cause"))).start()
    reported = ranks[0].report(echo)
    assert (reported.rank, reported.exit_code, str(reported)) == (1, 4, "CheckpointError: the cause")


def test_echo_whose_cause_nobody_reports_is_reported_as_that_cause(ranks):
    cause = DataError("the loader of another rank failed")
    assert ranks[0].report(Echo(cause)) is cause
    assert str(ranks[1].report(LOST)) == "DataError: the loader of another rank failed"


def test_rank_that_died_without_a_word_is_reported_once(ranks):
    error = ranks[0].report(LOST)
    assert error.exit_code == 137  # as the shell reports the rank that was killed
    assert "lost another rank" in str(error)
    assert "Connection closed by peer" in str(error)
    assert "more" not in str(error)
    assert not isinstance(error, Echo)
    echo = ranks[2].report(LOST)
    assert isinstance(echo, RankFailed)
    assert echo.exit_code == 137
    assert "rank 0 lost another rank" in str(echo)


def test_rank_that_waits_in_vain_does_not_take_the_other_one_for_dead(ranks):
    given_up = "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
    error = ranks[0].report(RuntimeError(given_up))
    assert error.exit_code == 76
    assert "rank 0 waited in vain for another rank" in str(error)
    assert "Timed out waiting 1800000ms" in str(error)


def test_store_that_is_gone_hides_no_error(ranks, monkeypatch):
    torn = DataError("torn shard")
    monkeypatch.setattr(ranks[1], "_store", None)
    assert ranks[1].report(torn) is torn


def test_rank_that_waits_for_ever_is_ended_with_the_first_ones_code_and_finishes_its_writing_first(ranks, monkeypatch):
    monkeypatch.setattr(first_failure, "_POLL_S", 0.02)
    monkeypatch.setattr(first_failure, "_GRACE_S", 0.02)
    ended, order, may_finish = threading.Event(), [], threading.Event()
    monkeypatch.setattr(first_failure.os, "_exit", lambda code: (order.append(code), ended.set()))
    ranks[2].finish_writing = lambda: (may_finish.wait(20), order.append("written"))
    with ranks[2].watching():
        ranks[1].report(DataError("torn shard"))
        may_finish.set()
        assert ended.wait(20)
    assert order[:2] == ["written", 3]


def test_error_is_known_to_the_others_before_anything_is_closed(ranks):
    class Closing:
        def close(self):
            assert str(ranks[0].report(LOST)) == "DataError: torn shard"

    with pytest.raises(DataError, match="torn shard"), contextlib.closing(Closing()), ranks[1].reporting():
        raise DataError("torn shard")


def test_interrupt_and_a_world_of_one_stay_as_they_are():
    alone = FirstFailure(dist.HashStore(), 0, 1)
    for error in (KeyboardInterrupt(), DataError("x"), LOST):
        assert alone.report(error) is error
