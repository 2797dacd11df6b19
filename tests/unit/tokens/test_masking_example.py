"""The row in the docstring of `mask_rows` is the result of masking it."""

import numpy as np

from megabert.foundation.randomness.keyed import mix
from megabert.tokens.masking import MaskingOptions, PieceTable, mask_instances
from megabert.tokens.masking_loops import mask_rows

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIALS, *"the a cat dog mat sat slept on under it she moon tree".split()]  # noqa: SIM905
ROW = ["[CLS]", *"the cat sat on the mat [SEP] it slept".split(), "[SEP]"]  # noqa: SIM905


def test_row_of_the_docstring_is_masked_as_it_says():
    ids = np.array([PIECES.index(piece) for piece in ROW], np.uint16)
    pieces = PieceTable(cls_id=2, sep_id=3, mask_id=4, vocab_size=len(PIECES))
    options = MaskingOptions(masked_lm_prob=0.3)  # of eleven positions, three
    masked = mask_instances(ids, np.array([0, len(ids)]), keys=mix(89, np.arange(1)), pieces=pieces, options=options)
    lines = {
        "ids in": ROW,
        "positions": map(str, masked.positions_M),
        "originals": [PIECES[piece] for piece in masked.original_ids_M],
        "ids out": [PIECES[piece] for piece in masked.ids_T],
    }
    documented = [line.strip() for line in (mask_rows.__doc__ or "").splitlines()]
    for name, words in lines.items():
        assert f"{name:<12} {' '.join(words)}" in documented
