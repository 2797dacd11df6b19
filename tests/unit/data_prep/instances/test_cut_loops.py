"""Instances of ids: a document is cut at any token, without a gap, an overlap or a rest."""

import numpy as np

from data_prep.instances.cut_loops import CutOptions, cut_documents

BOUNDS = np.array([100, 100 + 1000, 1105, 1106, 9000])
KEYS = np.array([7, 8, 9, 10], np.uint64)


def cuts(short_seq_prob, min_tokens=0, pass_key=3):
    return cut_documents(BOUNDS, KEYS, CutOptions(np.uint64(pass_key), short_seq_prob, 126, min_tokens))


def test_documents_are_cut_whole():
    starts, stops, keys, _ = cuts(0.0)
    assert (starts[0], stops[-1]) == (100, 9000)
    assert (stops[:-1] == starts[1:]).all()
    assert len(set(keys.tolist())) == len(keys)
    assert set(BOUNDS[1:]) <= set(stops)
    assert set((stops - starts)[~np.isin(stops, BOUNDS)]) == {126}


def test_short_ones_move_the_cuts():
    first, second = cuts(0.5), cuts(0.5, pass_key=4)
    lengths = first[1] - first[0]
    assert set(lengths.tolist()) <= set(range(1, 127))
    assert len(set(lengths.tolist())) > 20
    assert first[0].tolist() != second[0].tolist()
    assert (first[1][:-1] == first[0][1:]).all()
    assert (first[3] >= lengths).all()


def test_short_documents_are_left_out():
    starts, stops, *_ = cuts(0.0, min_tokens=1000)
    assert starts[0] == 100
    assert (stops - starts).sum() == 1000 + 9000 - 1106
