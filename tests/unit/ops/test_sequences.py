"""Numbers of sequences: padding, sequences without tokens, no sequence at all."""

import torch

from megabert.ops.sequences import sequence_numbers


def test_tokens_are_numbered_by_their_sequence_and_padding_by_the_next_number():
    cu_seqlens = torch.tensor([0, 2, 2, 5], dtype=torch.int32)  # the second one is empty
    assert sequence_numbers(cu_seqlens, 7).tolist() == [0, 0, 2, 2, 2, 3, 3]
    assert sequence_numbers(cu_seqlens, torch.tensor([4, 6, 0])).tolist() == [2, 3, 0]
    assert sequence_numbers(torch.zeros(1, dtype=torch.int32), 2).tolist() == [0, 0]
