import numpy as np
import pytest
from support.soak import in_soak
from unit.data_prep.conftest import pair_options, write_split
from unit.data_prep.instances.google_oracle import sample_built, sample_oracle, z_scores

from data_prep.instances.google import heads, pair_google
from data_prep.instances.pairs import DocumentBucket
from megabert.foundation.randomness.keyed import mix


@pytest.mark.parametrize(("length", "passes"), [(128, 16), *in_soak((512, 24))])
def test_fast_form_has_the_oracles_distribution(built, length, passes):
    folder = built.folder / "documents"
    scores = z_scores(sample_oracle(folder, length, passes), sample_built(folder, length, passes))
    assert max(map(abs, scores.values())) < 4, scores


def test_comparison_sees_a_wrong_share(built):
    """Negative control: a target of another length is noticed at once."""
    folder = built.folder / "documents"
    scores = z_scores(sample_oracle(folder, 128, 4), sample_built(folder, 124, 4))
    assert max(map(abs, scores.values())) > 6, scores


def test_heads_are_binomial():
    tosses = np.repeat([0, 1, 63, 64, 65, 300], 4000)
    found = heads(mix(np.arange(len(tosses)), 9), tosses)
    assert (found <= tosses).all()
    for number in (1, 63, 64, 65, 300):
        part = found[tosses == number]
        assert abs(part.mean() - number / 2) < 4 * np.sqrt(number / 4 / len(part))
        assert abs(part.var() / (number / 4) - 1) < 0.1


def test_single_document_keeps_the_tenth_draw(tmp_path):
    """With one document the random next comes from it, is labelled random, and nothing hangs."""
    alone = write_split(tmp_path, [[np.full(50, 10)]])
    pairs = pair_google(DocumentBucket(alone, 0), pair_options(64, pairing="google"))
    assert pairs.label.any()
    assert (pairs.b_start + pairs.b_length <= 500).all()
