"""The loop that cuts documents of ids into instances of one segment.

Ids have no sentences to begin and end at, so each instance begins where the one before it ended, and the last one of a
document takes the rest. In another pass the short ones (``short_seq_prob``) are others, and move the cuts after them.
"""

# D documents

from typing import Any, NamedTuple

import numpy as np

from data_prep.instances.draws import SHORT, TARGET
from megabert.compiled import compiled
from megabert.randomness.keyed_loops import below, mix_2, mix_3, uniform


class CutOptions(NamedTuple):
    """Parameters of the cuts."""

    pass_key: Any
    """Key of all draws of one pass for one length."""
    short_seq_prob: float
    """Share of the instances whose target is a short one."""
    longest: int
    """Tokens of an instance, at most."""
    min_tokens: int
    """Documents with fewer tokens are left out."""


@compiled
def cut_documents(bounds_D, document_keys, options):
    """Cut the documents of a bucket.

    Args:
        bounds_D: First token of each document, and the end of the last: one longer than D.
        document_keys: Random key of each document.
        options: `CutOptions`.

    Returns:
        Of each instance its first token, the token after it, its key, and its target.
    """
    pass_key, short_seq_prob, longest, min_tokens = options
    most = (bounds_D[-1] - bounds_D[0]) // 2 + len(document_keys)  # a target is two tokens at least
    starts, stops, targets = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    keys = np.empty(most, np.uint64)
    count = 0
    for document in range(len(document_keys)):
        first, end = bounds_D[document], bounds_D[document + 1]
        position = first if end - first >= min_tokens else end
        while position < end:
            key = mix_3(pass_key, document_keys[document], position - first)
            # Usually the whole length is wanted; sometimes less, so that the model meets short inputs as well.
            target = longest
            if uniform(mix_2(key, SHORT)) < short_seq_prob:
                target = 2 + below(mix_2(key, TARGET), longest - 1)
            starts[count], stops[count] = position, min(position + target, end)
            keys[count], targets[count] = key, target
            position = stops[count]
            count += 1
    return starts[:count], stops[:count], keys[:count], targets[:count]
