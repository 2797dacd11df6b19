"""The held-out documents: those with the smallest draws, up to the share that is asked for.

A draw is a hash of the text alone. So the choice depends neither on the order of the input nor on the workers nor on
the seed, copies of a text are in one split, and documents that are added change it for few of the others. Draws are
ranked, so the share is reached exactly, however few documents there are. Both splits get at least the number of
documents that the objective needs. In a corpus of more than a million documents, each draw is compared with the share
alone, and the result is within a hundredth of the share.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_prep.config.build import BuildConfig
from data_prep.documents.arrow_files import checked_batches
from data_prep.execution.executors import Executor
from megabert.foundation.errors import DataError
from megabert.foundation.randomness.keyed import mix, string_key

MAX_ONE_SENTENCE_SHARE = 0.2
MOST_RANKED = 1 << 20
"""Documents of which one process ranks all draws: 8 MiB."""
Draws = NDArray[np.uint64]
DocumentFile = tuple[Path, pa.Schema]
"""A file of documents with the hashes of their texts, and its columns, the last of which has their sentences or the
lengths of these."""


def draws_of(hashes: NDArray[np.uint64]) -> Draws:
    """Return the draw of each document, from the hash of its text."""
    return np.asarray(mix(hashes, string_key("split")))


def split_of(hashes: NDArray[np.uint64], below: int) -> NDArray[np.uint8]:
    """Return 1 for documents that are held out: their draw is below a bound, the result of `held_out_below`."""
    return (draws_of(hashes) < np.uint64(below)).astype(np.uint8)


def needed(config: BuildConfig) -> int:
    """Return how many documents each split needs: a random next sentence comes from another one."""
    return 2 if config.objective == "nsp" else 1


def held_out_below(config: BuildConfig, documents: int, files: Sequence[DocumentFile], executor: Executor) -> int:
    """Return the bound below which a document's draw holds it out.

    Args:
        config: Names the share and the objective.
        documents: Number of documents in all files.
        files: All documents.
        executor: Reads the files.

    Raises:
        DataError: There are too few documents for both splits.
    """
    if documents > MOST_RANKED:
        return int(config.validation_share * 2**64)
    read = [part for _, part in executor.run(read_draws, files)]
    all_draws, of_several = (np.concatenate([np.zeros(0, np.uint64), *parts]) for parts in zip(*read, strict=True))
    require_several_sentences(config, len(all_draws) - len(of_several), len(all_draws))
    if not config.validation_share:  # copies of a text may be trained on; a build warns of labels that teach nothing
        require_enough(config, len(all_draws), len(of_several))
        return 0
    every, several = np.unique(all_draws), np.unique(of_several)
    require_enough(config, len(every), len(several))
    usable = every if config.objective == "none" else several
    least = needed(config)
    wanted = int(every[math.ceil(config.validation_share * len(every)) - 1]) + 1
    # At least `needed` documents are held out, and at least `needed` are left to train on.
    return min(max(wanted, int(usable[least - 1]) + 1), int(usable[len(usable) - least]))


def read_draws(file: DocumentFile) -> tuple[Draws, Draws]:
    """Return the draws of a file's documents, and of those with two sentences or more."""
    table = pa.Table.from_batches(checked_batches(*file, is_full=False), file[1])
    draws = draws_of(np.asarray(table["document_hash"]))
    return draws, draws[np.asarray(pc.list_value_length(table[file[1].names[-1]])) > 1]


def require_enough(config: BuildConfig, different: int, several: int) -> None:
    """Refuse a corpus that is too small for both splits.

    Args:
        config: Names the share and the objective.
        different: Number of documents; of different texts, if some are to be held out.
        several: How many of these have two sentences or more.

    Raises:
        DataError: It is; the message has a remedy that works.
    """
    is_paired, least = config.objective != "none", needed(config)
    usable = several if is_paired else different
    splits = 2 if config.validation_share else 1
    if usable >= splits * least:
        return
    of_two = " of two sentences or more" if is_paired else ""
    different_ones, held_out = ("different ", f" and {least} held out") if splits == 2 else ("", "")
    raise DataError(
        f"{usable} {different_ones}document(s){of_two}: objective={config.objective} needs {least} to train on"
        f"{held_out}. {' '.join(_remedies(config, different, several, splits))}"
    )


def require_several_sentences(config: BuildConfig, single: int, documents: int) -> None:
    """Refuse to make pairs of a corpus in which too many documents have one sentence.

    Args:
        config: Names the objective.
        single: Number of these documents.
        documents: Number of all.

    Raises:
        DataError: They are too many.
    """
    if config.objective != "none" and single > MAX_ONE_SENTENCE_SHARE * documents:
        raise DataError(
            f"{single:,} of {documents:,} documents have one sentence, which gives no pair; objective="
            f"{config.objective} allows {MAX_ONE_SENTENCE_SHARE:.0%}. Use objective: none (--objective none), or "
            "fix the document borders: blank lines part documents, where --format book takes a file as one; and "
            "--language decides sentences."
        )


def _remedies(config: BuildConfig, different: int, several: int, splits: int) -> Iterable[str]:
    """Yield what helps, first what costs least."""
    yield "Give more documents; where one file holds many, check that blank lines part them (--format)."
    others = [name for name, number in (("sop", several), ("none", different)) if number >= splits]
    if others and config.objective == "nsp":
        yield f"Or use --objective {' or '.join(others)}, for which {splits} document(s) are enough."
    if splits == 2 and (several if config.objective != "none" else different) >= needed(config):
        yield "Or hold out none (--validation-share 0), to validate on other text or not at all."
