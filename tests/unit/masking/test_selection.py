import numpy as np

from megabert.masking.keyed_random import mix, stream
from megabert.masking.selection import Candidates, select_tokens


def test_selection_equals_taking_the_first_in_random_order():
    generator = np.random.default_rng(2)
    lengths = generator.integers(0, 200, size=4000)
    row = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    is_candidate = generator.random(len(row)) < 0.9
    candidates = np.bincount(row[is_candidate], minlength=len(lengths))
    counts = np.minimum(generator.integers(0, 40, size=len(lengths)), candidates)
    keys = mix(5, np.arange(len(lengths)))
    chosen = select_tokens(
        Candidates(
            row_T=row,
            position_T=position,
            is_candidate_T=is_candidate,
            is_subword_T=None,
            candidates_R=candidates,
            counts_R=counts,
            keys_R=keys,
        )
    )
    random = stream(keys[row], position)
    for index in range(len(lengths)):
        tokens = np.flatnonzero((row == index) & is_candidate)
        wanted = tokens[np.argsort(random[tokens])][: counts[index]]
        assert np.flatnonzero(chosen & (row == index)).tolist() == sorted(wanted.tolist())
