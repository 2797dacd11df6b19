"""Minimal pairs that are scored at each validation, so that curves show when a model learns which part of the grammar.

The batches of masked copies are the same whatever the number of ranks; each rank takes its share of them. Every copy's
score is computed on one rank alone, so the accuracies do not depend on the world either.
"""

# N pairs, P pieces of all sentences

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from megabert.distributed.process_group import World
from megabert.engine.engine import Engine, HostCopy
from megabert.foundation.errors import ConfigError
from megabert.foundation.randomness.keyed import mix, string_key
from megabert.settings.config.phase import PhaseConfig
from megabert.tokens.tokenization import SpecialIds, Tokenizer
from megabert.training.probes.masked_copies import Sentences, copy_batches, encode_sentences
from megabert.training.probes.minimal_pairs import Pair, read_pairs, score_groups, sentences_of

MOST_PAIRS = 512
"""Pairs of a set that are scored; of a larger one, a sample that is the same in every run."""
BATCH_TOKENS = 4096
"""Most packed tokens of a batch of copies, whatever the size of a micro-batch."""
_SAMPLE_KEY = string_key("training/probes")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A set of minimal pairs, ready to be scored."""

    name: str
    pairs: list[Pair]
    sentences: Sentences
    """All good sentences, then all bad ones."""
    special: SpecialIds


def open_probes(names: Sequence[str], tokenizer: Tokenizer) -> tuple[Probe, ...]:
    """Read sets of minimal pairs by name or file.

    Raises:
        ConfigError: Two sets have the same file name, so that their metrics would have the same tags.
        DataError: A set cannot be read.
    """
    by_tag: dict[str, str] = {}
    probes: list[Probe] = []
    for name in names:
        tag = Path(name).stem
        if tag in by_tag:
            raise ConfigError(
                f"validation.probes: {by_tag[tag]} and {name} would both be logged as probe/{tag}. Rename one file."
            )
        by_tag[tag] = name
        pairs = read_pairs(Path(name))
        chosen = np.sort(np.argsort(mix(_SAMPLE_KEY, np.arange(len(pairs))), kind="stable")[:MOST_PAIRS])
        pairs = [pairs[index] for index in chosen]
        sentences = encode_sentences(tokenizer, sentences_of(pairs))
        probes.append(Probe(name=tag, pairs=pairs, sentences=sentences, special=tokenizer.special_ids))
    return tuple(probes)


def run_probes(engine: Engine, probes: Sequence[Probe], phase: PhaseConfig, world: World) -> dict[str, float]:
    """Score the probes; every rank calls this.

    Args:
        engine: The model as it is trained.
        probes: The sets.
        phase: The present phase. Positions after its length may not have been trained, so longer sentences are seen in
            windows of that length.
        world: This rank among the others.

    Returns:
        The accuracy of each set as ``probe/NAME``, of each of its groups as ``probe/NAME/GROUP``.
    """
    metrics = {}
    with engine.evaluating():
        for probe in probes:
            scores_P = _score_pieces(engine, probe, phase.max_seq_length, world)
            starts = probe.sentences.starts.tolist()
            scores_2N = np.array([scores_P[first:stop].sum() for first, stop in pairwise(starts)])
            *groups, everything = score_groups(probe.pairs, scores_2N)
            metrics[f"probe/{probe.name}"] = everything.accuracy
            metrics |= {f"probe/{probe.name}/{row.group}": row.accuracy for row in groups}
    return metrics


def _score_pieces(engine: Engine, probe: Probe, longest: int, world: World) -> NDArray[np.float64]:
    """Return the log-probability of each piece of the probe's sentences."""
    batches = list(copy_batches(probe.sentences, probe.special, longest=longest, batch_tokens=BATCH_TOKENS))
    scores_P = torch.zeros(len(probe.sentences.ids_P), dtype=torch.float64, device=world.device)
    for begin in range(0, len(batches), world.size):
        # A rank for which no batch is left repeats another's, because collectives of a forward pass have to pair up.
        index = begin + world.rank
        pieces_C, batch = batches[min(index, len(batches) - 1)]
        moved = batch.to(world.device)
        logits_MV = engine.forward(moved, with_logits=True).mlm_logits_MV.float()
        losses_M = functional.cross_entropy(logits_MV, moved.masked_ids_M, reduction="none")
        if index < len(batches):
            scores_P[torch.from_numpy(pieces_C).to(world.device)] = -losses_M.double()
    # Each piece is a number of one rank and zeros of the others, so the sum is exact.
    return HostCopy(world.sum_over_ranks(scores_P)).wait().numpy()
