"""Masked language model targets for many instances at once (Devlin et al. 2019, section 3.1).

What happens to an instance is a function of its ids and its key alone, in any batch.
"""

# T tokens of all instances, I instances, M predictions of all instances

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.randomness.keyed import mix, string_key, uniform

MASK_UNITS = ("token", "whole_word", "span")
"""Units of masking, in the order of the loops' numbers. token: single tokens (Devlin et al. 2019, section 3.1).
whole_word: google-research/bert's whole word masking. span: runs of 1 to 10 words, geometrically distributed (SpanBERT,
Joshi et al. 2020, section 3.1)."""
_SHARES_KEY = string_key("masking/shares")
LEAST_COUNT = 10.0
"""Pieces that occur less often are as likely to be masked as if they occurred so often."""
MAX_LENGTH = 1 << 16
"""Instances are shorter: positions are stored in 16 bits."""


@dataclass(frozen=True, kw_only=True)
class MaskingOptions:
    """How instances are masked. The share and the cap have their names in google-research/bert."""

    mask_unit: str = "token"
    """Unit that is masked as a whole: "token", "whole_word" or "span"."""
    masked_lm_prob: float = 0.15
    """Share of an instance's tokens, special ones counted, that is predicted."""
    least_masked_lm_prob: float | None = None
    """Where set, each instance draws its share, uniformly between this and ``masked_lm_prob``."""
    max_predictions_per_seq: int = 20
    """Most predictions in one instance."""
    rarity: float = 0.0
    """Exponent by which rare pieces are masked more often; `rarity_weights` makes weights of it."""
    actions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Shares of the predicted tokens that become [MASK], become a random piece, and are kept (Devlin et al. 2019)."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if self.mask_unit not in MASK_UNITS:
            raise ConfigError(f"mask_unit={self.mask_unit!r}: allowed are {', '.join(MASK_UNITS)}.")
        if not 0 < self.masked_lm_prob < 1:
            raise ConfigError(f"masked_lm_prob={self.masked_lm_prob} must be between 0 and 1; BERT uses 0.15.")
        if self.max_predictions_per_seq < 1:
            raise ConfigError(
                f"max_predictions_per_seq={self.max_predictions_per_seq} must be at least 1; "
                "a build takes 20 for length 128 and 77 for 512."
            )


class PieceTable(NamedTuple):
    """What masking knows of a vocabulary."""

    cls_id: int
    """Id of [CLS], which is never predicted."""
    sep_id: int
    """Id of [SEP], which is never predicted."""
    mask_id: int
    """Id of [MASK]."""
    vocab_size: int
    """Random replacements are uniform over all ids below it, special ones included, as in google-research/bert."""
    is_subword: NDArray[np.bool_] | None = None
    """Boolean array by id, whether a piece continues a word; needed where words are masked."""
    weights: NDArray[np.float64] | None = None
    """Float64 array by id, above 0: how likely a piece is chosen beside others; needed where ``rarity`` is not 0."""


class MaskedInstances(NamedTuple):
    """Instances with their targets."""

    ids_T: NDArray[np.integer]
    """Ids after masking, in the dtype of the input."""
    positions_M: NDArray[np.uint16]
    """Predicted positions, counted from the start of their instance, ascending within it."""
    original_ids_M: NDArray[np.integer]
    """Ids before masking at those positions, in the dtype of the input."""
    offsets: NDArray[np.int64]
    """Shape (I + 1,): instance i has the predictions ``offsets[i]`` to ``offsets[i + 1]``."""


def count_predictions(
    lengths: NDArray[np.integer], options: MaskingOptions, shares: NDArray[np.float64] | None = None
) -> NDArray[np.int64]:
    """Return how many tokens google-research/bert predicts in instances of these lengths.

    Args:
        lengths: Tokens of an instance, its special ones included.
        options: The share and the cap.
        shares: The share of each instance, from `draw_shares`; by default ``masked_lm_prob``, the greatest.

    Returns:
        ``min(max_predictions_per_seq, max(1, round(length * share)))``, halves rounded to even.
    """
    share = options.masked_lm_prob if shares is None else shares
    wanted = np.rint(np.asarray(lengths, dtype=np.float64) * share).astype(np.int64)
    return np.minimum(options.max_predictions_per_seq, np.maximum(1, wanted))


def draw_shares(keys: NDArray[np.uint64], options: MaskingOptions) -> NDArray[np.float64] | None:
    """Return the share of its tokens that each instance predicts, by its key; None if all have one share."""
    least, most = options.least_masked_lm_prob, options.masked_lm_prob
    return None if least is None else least + (most - least) * uniform(mix(_SHARES_KEY, keys))


def rarity_weights(counts: NDArray[np.integer], rarity: float) -> NDArray[np.float64]:
    """Return weights of pieces that fall with their counts, for `PieceTable` (Zhang et al. 2023, section 3.1).

    Args:
        counts: How often each piece occurs, by id. All below 10 are alike, since small counts are chance.
        rarity: Exponent: 0.5 chooses a piece that is four times as frequent half as often.

    Returns:
        ``max(count, 10) ** -rarity``, rounded to 24 bits, which all machines compute alike.
    """
    return (np.maximum(counts, LEAST_COUNT) ** -rarity).astype(np.float32).astype(np.float64)


def mask_instances(
    ids_T: NDArray[np.integer],
    offsets: NDArray[np.integer],
    *,
    keys: NDArray[np.uint64],
    pieces: PieceTable,
    options: MaskingOptions | None = None,
    is_in_place: bool = False,
) -> MaskedInstances:
    """Choose tokens to predict and mask them.

    Words are taken in random order, by the weights of their pieces if they have any, until the wanted number is
    reached; one that would exceed it is passed over, so an instance may end with fewer where words are masked whole.

    Args:
        ids_T: Ids of all instances end to end, ``[CLS] A [SEP] B [SEP]`` each.
        offsets: Int64 of shape (I + 1,): instance i is ``ids_T[offsets[i]:offsets[i + 1]]``.
        keys: Uint64 of shape (I,): one random key per instance, from `megabert.foundation.randomness.keyed.mix`.
        pieces: What must be known of the vocabulary.
        options: How to mask; BERT's values by default.
        is_in_place: Whether ``ids_T`` itself is masked, not a copy.

    Raises:
        ConfigError: Words are masked, or rare pieces more often, and ``pieces`` does not know them.
        DataError: Offsets and keys do not fit the ids, or an instance has 65,536 tokens or more.
    """
    from megabert.tokens.masking_loops import mask_rows

    options = options or MaskingOptions()
    _check(ids_T, offsets, keys, pieces)
    if pieces.is_subword is None:
        if options.mask_unit != "token":
            raise ConfigError(
                f"mask_unit={options.mask_unit} needs to know which pieces continue a word; give is_subword."
            )
        # An empty array instead of None: the loop is compiled for one type, not for two.
        pieces = pieces._replace(is_subword=np.zeros(0, np.bool_))
    if (pieces.weights is None) != (options.rarity == 0):
        raise ConfigError(f"rarity={options.rarity:g} and the weights of the pieces go together; give both or none.")
    if pieces.weights is None:
        pieces = pieces._replace(weights=np.zeros(0, np.float64))
    wanted = count_predictions(np.diff(offsets), options, draw_shares(keys, options))
    # Room for all that is wanted; where words are masked whole, some of it may be left over.
    room = int(wanted.sum())
    masked = MaskedInstances(
        ids_T=ids_T if is_in_place else ids_T.copy(),
        positions_M=np.empty(room + 1, np.uint16),  # one more, which the loop may overwrite
        original_ids_M=np.empty(room, ids_T.dtype),
        offsets=np.zeros(len(keys) + 1, np.int64),
    )
    mask_unit = MASK_UNITS.index(options.mask_unit)
    mask_rows(masked, offsets, keys, wanted, mask_unit, pieces, _action_bounds(options.actions))
    count = masked.offsets[-1]
    return masked._replace(positions_M=masked.positions_M[:count], original_ids_M=masked.original_ids_M[:count])


def _action_bounds(actions: tuple[float, float, float]) -> tuple[np.uint64, np.uint64]:
    """Return below which draw of 53 bits a chosen position becomes [MASK], and below which a random piece."""
    to_mask, to_random, _ = actions
    mask_below, random_below = (math.ceil(min(1.0, share) * 2**53) for share in (to_mask, to_mask + to_random))
    return np.uint64(mask_below), np.uint64(random_below)


def _check(
    ids_T: NDArray[np.integer], offsets: NDArray[np.integer], keys: NDArray[np.uint64], pieces: PieceTable
) -> None:
    lengths = np.diff(offsets)
    assert len(lengths) == len(keys), "a key per instance"
    assert (offsets[0], offsets[-1]) == (0, len(ids_T)), "offsets are of all tokens"
    assert (lengths >= 0).all(), "offsets ascend"
    if np.any(lengths >= MAX_LENGTH):
        raise DataError(
            f"masking: an instance has {int(lengths.max()):,} tokens; at most {MAX_LENGTH - 1:,} are allowed."
        )
    known = [len(by_id) for by_id in (pieces.is_subword, pieces.weights) if by_id is not None]
    if min(known, default=pieces.vocab_size) < pieces.vocab_size:
        raise DataError(
            f"masking: the tokenizer has {min(known):,} pieces, and the instances are of a vocabulary of "
            f"{pieces.vocab_size:,}. Put the tokenizer of the shards next to them."
        )
