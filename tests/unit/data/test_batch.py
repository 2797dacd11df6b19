"""Sequences that are no instances, packed."""

import numpy as np

from megabert.data.batch import IGNORED, pack_sequences


def test_sequences_lie_end_to_end_with_their_masks():
    batch = pack_sequences([np.array([2, 9, 4, 3]), np.array([2, 4, 3, 4, 3])], segment_b_starts=[4, 3], mask_id=4)
    assert batch.input_ids_T.tolist() == [2, 9, 4, 3, 2, 4, 3, 4, 3]
    assert batch.position_ids_T.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert batch.segment_ids_T.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert batch.cu_seqlens.tolist() == [0, 4, 9]
    assert batch.masked_positions_M.tolist() == [2, 5, 7]
    assert batch.masked_ids_M.tolist() == [IGNORED] * 3
    assert batch.next_sentence_label_B.tolist() == [IGNORED] * 2
    assert (batch.max_seqlen, batch.num_tokens, batch.num_masked, batch.num_instances) == (5, 9, 3, 2)


def test_nothing_is_predicted_where_no_mask_is_named():
    batch = pack_sequences([np.array([2, 4, 3])])
    assert batch.num_masked == 0
    assert batch.segment_ids_T.tolist() == [0, 0, 0]
    assert batch.masked_ids_M.tolist() == [IGNORED]
