import socket
import time
from dataclasses import replace

import pytest

from megabert.training.recovery.heartbeat import SILENT_S, Beat, Heartbeat, forget_ranks, read_beats, slowest_ranks


def beat(rank: int, step: int = 7, is_waiting: bool = True, age_s: float = 1.0) -> Beat:
    doing = "waiting for the other ranks" if is_waiting else "making a step"
    return Beat(
        rank=rank, host=f"n{rank}", step=step, doing=doing, is_waiting=is_waiting, since=935.0, time=1000.0 - age_s
    )


def test_place_is_written_and_read_back(tmp_path):
    with Heartbeat(tmp_path, 3) as heartbeat:
        heartbeat.note(7, "making a step")
        heartbeat.beat()
        (last,) = read_beats(tmp_path)
        assert (last.rank, last.step, last.doing, last.is_waiting) == (3, 7, "making a step", False)
        heartbeat.note(12_345_678, "x", is_waiting=True)
    (last,) = read_beats(tmp_path)
    assert (last.step, last.doing, last.is_waiting) == (12_345_678, "x", True)
    assert abs(last.time - time.time()) < 60


def test_torn_file_is_left_out(tmp_path):
    for rank in (0, 1):
        with Heartbeat(tmp_path, rank):
            pass
    (tmp_path / "heartbeats" / "rank_000.json").write_text('{"rank": 0, "ho')
    assert [beat.rank for beat in read_beats(tmp_path)] == [1]


def test_rank_that_still_computes_is_named():
    shown = slowest_ranks([beat(0), beat(1, is_waiting=False), beat(2)])
    assert shown == "the others wait for rank 1 (n1), making a step at step 7 for 64 s"


def test_rank_that_is_a_step_behind_is_named():
    assert "wait for rank 2 (n2)" in slowest_ranks([beat(0), beat(1), beat(2, step=6)])


def test_silent_rank_is_named():
    shown = slowest_ranks([beat(0), beat(1, age_s=SILENT_S + 51)])
    assert shown == "no sign of life from rank 1 (n1) for 80 s"


def test_nobody_is_named_where_all_are_alike():
    assert slowest_ranks([beat(0), beat(1)]) == ""
    assert slowest_ranks([beat(0, is_waiting=False), beat(1, is_waiting=False)]) == ""
    assert slowest_ranks([]) == ""


def test_long_lists_are_cut():
    beats = [beat(rank, is_waiting=rank > 7) for rank in range(12)]
    assert slowest_ranks(beats).endswith("; and 3 more")


def test_ranks_of_an_earlier_larger_start_are_forgotten(tmp_path):
    for rank in range(4):
        with Heartbeat(tmp_path, rank):
            pass
    forget_ranks(tmp_path, 2)
    assert [beat.rank for beat in read_beats(tmp_path)] == [0, 1]


@pytest.mark.parametrize("skew_s", [-90.0, 300.0])
def test_clocks_of_other_hosts_do_not_matter(tmp_path, monkeypatch, skew_s):
    sound = [Heartbeat(tmp_path, 0, met=5000.0)]
    monkeypatch.setattr("megabert.training.recovery.heartbeat.socket.gethostname", lambda: "n1")
    monkeypatch.setattr("megabert.training.recovery.heartbeat.time.time", lambda: 5000.0 + skew_s)
    sound.append(Heartbeat(tmp_path, 1, met=5000.0))
    for heartbeat in sound:
        heartbeat.note(7, "making a step")
        with heartbeat:
            pass
    assert all(abs(beat.time - 5000.0) < 25 and beat.since <= beat.time for beat in read_beats(tmp_path))
    assert slowest_ranks(read_beats(tmp_path)) == ""


def test_only_the_silent_rank_is_named_while_the_others_wait_for_it():
    beats = [beat(0), beat(1, is_waiting=False, age_s=SILENT_S + 21), beat(2, is_waiting=False)]
    assert slowest_ranks(beats) == "no sign of life from rank 1 (n1) for 50 s"


def test_silence_of_all_ranks_is_seen_on_the_host_of_rank_0_alone():
    beats = [beat(0), beat(1)]
    assert slowest_ranks(beats) == ""
    assert "no sign of life from rank 0" in slowest_ranks([replace(beats[0], host=socket.gethostname()), beats[1]])
