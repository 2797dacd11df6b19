"""Micro-batches: the example of the docstring, and sequences that are no instances, packed."""

import numpy as np

from megabert.data import batch as batch_module
from megabert.data.batch import IGNORED, BatchFormat, assemble_batch, pack_sequences
from megabert.data.packing import MicroShape
from megabert.tokens.shards.columns import FlatInstances


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


def test_the_example_of_a_packed_batch_is_what_happens():
    """The instances and tensors are those in the docstring of `megabert.data.batch`."""
    lines = batch_module.__doc__.splitlines()
    first = next(number for number, line in enumerate(lines) if line.split()[:1] == ["input_ids"])
    cuts = [lines[first].index(name) for name in lines[first].split()]
    rows = [
        [line[start:stop].split() for start, stop in zip(cuts, [*cuts[1:], None], strict=True)]
        for line in lines[first + 1 : first + 4]
    ]
    ids, b_starts, positions, originals, labels = (
        [list(map(int, cell)) for cell in column] for column in zip(*rows, strict=True)
    )

    def starts_of(lists):
        return np.cumsum([0, *map(len, lists)])

    instances = FlatInstances(
        token_starts=starts_of(ids),
        input_ids=np.concatenate(ids),
        segment_b_starts=np.concatenate(b_starts),
        masked_starts=starts_of(positions),
        masked_positions=np.concatenate(positions).astype(np.int64),
        masked_id_starts=starts_of(originals),
        masked_ids=np.concatenate(originals).astype(np.int64),
        next_sentence_labels=np.concatenate(labels),
        rows=np.arange(3),
    )
    batch_format = BatchFormat(pad_id=0, max_seq_length=8, has_labels=True)
    batch = assemble_batch(instances, instances.rows, np.zeros(3, np.int32), batch_format)
    shown = {words[0]: words[1:] for words in (line.split("#")[0].split() for line in lines) if words}
    wanted = {name: list(map(int, shown[name])) for name in vars(batch) if name in shown}
    assert len(wanted) == 7
    assert {name: getattr(batch, name).tolist() for name in wanted} == wanted

    shape = MicroShape(tokens=18, sequences=4, masked=5)
    padded = assemble_batch(instances, instances.rows, np.zeros(3, np.int32), batch_format, shape)
    filling = {"input_ids_T": [0], "cu_seqlens": [17], "masked_positions_M": [0, 0], "masked_ids_M": [-100] * 2}
    for name, values in {**filling, "next_sentence_label_B": [-100]}.items():
        assert getattr(padded, name).tolist() == wanted[name] + values
