"""What a model that knows word frequencies only would score: the bar that learning has to clear."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megabert.data.dynamic_masking import make_masker
from megabert.data.shard_set import ShardSet

_SPAN_ROWS = 65_536


@dataclass(frozen=True, eq=False)
class UnigramBaseline:
    """A unigram predictor of masked tokens.

    Attributes:
        counts: Int64 of shape (V,), how often each piece was a target in training, plus one.
        loss: Mean negative log-likelihood in nats on the held-out masked positions.
        accuracy: Share of them that are the most frequent piece.
    """

    counts: NDArray[np.int64]
    loss: float
    accuracy: float


def fit_unigram(train: ShardSet, held_out: ShardSet, *, max_instances: int) -> UnigramBaseline:
    """Fit on the training targets with add-one smoothing, score on the held-out masked positions.

    Args:
        train: Shards whose ``masked_lm_ids`` are all counted; where the loader draws the masks, epoch 0's are taken.
        held_out: Shards that are scored.
        max_instances: How many held-out instances are scored, the first ones, as in a validation.
    """
    counts = np.ones(train.metadata.vocab_size, np.int64)
    for first in range(0, train.num_rows, _SPAN_ROWS):
        counts += _counts(train, first, min(first + _SPAN_ROWS, train.num_rows))
    targets = _counts(held_out, 0, min(max_instances, held_out.num_rows))
    log_probability = np.log(counts / counts.sum())
    total = max(1, int(targets.sum()))
    return UnigramBaseline(
        counts=counts,
        loss=float(-(targets * log_probability).sum() / total),
        accuracy=float(targets[counts.argmax()] / total),
    )


def _counts(shards: ShardSet, first: int, stop: int) -> NDArray[np.int64]:
    columns, masker = shards.columns(((first, stop),)), make_masker(shards, seed=0)
    if masker is not None:  # dynamic masking: the same masks as in a validation
        columns = masker.mask(columns, np.arange(len(columns.rows)), epoch=0)
    return np.bincount(columns.masked_ids, minlength=shards.metadata.vocab_size)
