"""Held-out text with one word masked, for a report that shows guesses without being given a text."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megabert.data.dynamic_masking import DynamicMasker
from megabert.tokens.shards.shard_set import ShardSet
from megabert.tokens.tokenization import Tokenizer, load_tokenizer
from megabert.training.run.folder import read_config, run_data

_AROUND = 12
"""Pieces that are shown on each side of the mask."""
_TRIED = 8
"""Instances that are looked at for each sample; some have no whole word among their masked positions."""


def held_out_samples(run_dir: Path, phase: int, *, count: int = 5) -> list[tuple[str, str]]:
    """Return texts with one mask each, and the words that they had there.

    Args:
        run_dir: Run folder.
        phase: Index of the phase whose held-out split is taken.
        count: Number of samples at most. Each comes from its own part of the split, the same one each time.
    """
    config = read_config(run_dir)
    shards = ShardSet.open(run_data(run_dir, config, config.phases[phase]), "validation")
    tokenizer = load_tokenizer(shards.tokenizer_dir)
    rows = np.unique(np.linspace(0, shards.num_rows - 1, _TRIED * count).astype(int))
    parts = [[_sample_of(row, shards, tokenizer) for row in part.tolist()] for part in np.array_split(rows, count)]
    return [next(sample for sample in part if sample is not None) for part in parts if any(part)]


def _sample_of(row: int, shards: ShardSet, tokenizer: Tokenizer) -> tuple[str, str] | None:
    """Return the first sample of an instance, if it has one."""
    columns = shards.columns(((row, row + 1),))
    if not shards.has_masks:
        columns = DynamicMasker(shards, seed=0).mask(columns, 0)
    ids_T, positions_M = columns.input_ids.astype(np.int64), columns.masked_positions.astype(np.int64)
    ids_T[positions_M] = columns.masked_ids  # the text as it was
    return next(filter(None, (_sample_at(ids_T, position, tokenizer) for position in positions_M.tolist())), None)


def _sample_at(ids_T: NDArray[np.int64], position: int, tokenizer: Tokenizer) -> tuple[str, str] | None:
    """Return the text around a position with the mask there, and its word; None if its piece is no whole word."""
    is_part_T = tokenizer.is_subword[ids_T]
    word = tokenizer.decode(ids_T[position : position + 1]).strip()
    if is_part_T[position] or is_part_T[position + 1] or not word.isalpha():
        return None
    # From one special piece to the next, and no further than the window; words that it cuts are left out.
    special_M = np.flatnonzero(np.isin(ids_T, [tokenizer.special_ids.cls, tokenizer.special_ids.sep]))
    place = int(np.searchsorted(special_M, position))
    first = max(int(special_M[place - 1]) + 1, position - _AROUND)
    stop = min(int(special_M[place]), position + 1 + _AROUND)
    while first < position and is_part_T[first]:
        first += 1
    while stop > position + 1 and is_part_T[stop]:
        stop -= 1
    before, after = (tokenizer.decode(part).strip() for part in (ids_T[first:position], ids_T[position + 1 : stop]))
    return f"{before} {tokenizer.names.mask} {after}".strip(), word
