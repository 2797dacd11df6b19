"""The loop that walks over documents and makes instances of one segment.

Each instance begins where the one before it ended, so all text is used once in a pass, and the last one of a document
takes the rest. It ends at the last sentence that fits. A sentence that is longer than the target is cut there and goes
on in the next instance: where a text has few marks of a sentence's end, or none, as lists of ids, nothing is lost.
"""

# D documents, S sentences

import numpy as np

from data_prep.instances.pair_walk_loops import draw_target
from megabert.foundation.compiled import compiled
from megabert.foundation.randomness.keyed_loops import mix_3


@compiled
def walk_documents(document_starts, starts_S, document_keys, options):
    """Cut the documents of a bucket into instances.

    Args:
        document_starts: First sentence of each document, and the end of the last: one longer than D.
        starts_S: First token of each sentence, and the end of the last: one longer than S.
        document_keys: Random key of each document.
        options: `data_prep.instances.pair_walk_loops.WalkOptions`.

    Returns:
        Of each instance its first token, the token after it, and its key.
    """
    pass_key, short_seq_prob, longest, _, min_tokens, _, _ = options
    # An instance ends at the end of a sentence, or has as many tokens as its target, which is 2 at least.
    most = (starts_S[-1] - starts_S[0]) // 2 + len(starts_S)
    starts, stops, keys = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.uint64)
    count = 0
    for document in range(len(document_keys)):
        sentence, last = document_starts[document], document_starts[document + 1]
        first, end = starts_S[sentence], starts_S[last]
        position = first if end - first >= min_tokens else end
        while position < end:
            key = mix_3(pass_key, document_keys[document], position - first)
            stop = position + draw_target(key, longest, short_seq_prob)
            while sentence < last and starts_S[sentence + 1] <= stop:
                sentence += 1
            if starts_S[sentence] > position:
                stop = starts_S[sentence]
            starts[count], stops[count], keys[count] = position, stop, key
            position = stop
            count += 1
    return starts[:count], stops[:count], keys[:count]
