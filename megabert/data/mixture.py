"""The builds that a phase reads, its sources, and how many instances of each one a global batch has.

A share is a share of the tokens, as papers state them; the instances follow from the mean length of each source. Which
source an instance comes from depends on the shares and on its number in the phase alone, so that it is the same for any
number of ranks, after a resume, and for batches of any size:

The sources are the leaves of a Huffman tree over their weights. The first n instances of the phase are divided from the
root downwards: the lighter side of a node with k instances gets ``k * lighter / both``, rounded, the other side the
rest. So the counts add up to n, none of them ever falls as n grows, and seeking costs the same for every n.

The rounding of a node is off by 1/2 at most and is passed on to a leaf by the leaf's share of that node. A source of
weight w below nodes of weights w < w1 < w2 < ... is thus off by (1 + w/w1 + w/w2 + ...) / 2 instances at most. With two
sources this is 1/2. In a Huffman tree w1, w2, ... grow at least as Fibonacci's numbers do, so that it is below 1.7 for
any number of sources; in the mixtures of the tests it is below 1.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.data.order import BEGINNING, DataPosition, PositionRange
from megabert.foundation.errors import DataError
from megabert.settings.config.loading import phase_data
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import RunConfig
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.folder import InstanceStatistics
from megabert.tokens.shards.shard_set import ShardSet, Sizes

Positions = Mapping[str, DataPosition]
"""Where each build's data continue, by the SHA-256 of its data; a build that is missing is at its first instance."""
Ranges = tuple[PositionRange, ...]

_ROW_BITS = 48
"""A row of source s has the number ``s << 48 | row``, which differs between sources and is the row in the first one."""
_UNITS = 1 << 40
"""Parts that shares are counted in: a float of a share is rounded by less than one instance in a trillion."""


def apportion(weights: Sequence[int], number: int) -> list[int]:
    """Return how many of the first ``number`` instances of a phase come from each source.

    Args:
        weights: Share of the instances that each source has, in any unit; whole numbers, so that all machines agree.
        number: Number of instances.
    """
    counts = [0] * (2 * len(weights) - 1)
    counts[-1] = number
    for node, lighter, heavier, part, both in _tree(tuple(weights)):
        counts[lighter] = (2 * counts[node] * part + both) // (2 * both)  # rounded
        counts[heavier] = counts[node] - counts[lighter]
    return counts[: len(weights)]


@lru_cache(maxsize=64)
def _tree(weights: tuple[int, ...]) -> list[tuple[int, int, int, int, int]]:
    """Return the inner nodes of a Huffman tree, the root first.

    Returns:
        For each its number, the numbers of its lighter and its heavier side, the weight of the lighter one, and both
        weights together.
    """
    heap = [(weight, leaf) for leaf, weight in enumerate(weights)]
    nodes: list[tuple[int, int, int, int, int]] = []
    heapq.heapify(heap)
    while len(heap) > 1:
        (part, lighter), (rest, heavier) = heapq.heappop(heap), heapq.heappop(heap)
        node = len(weights) + len(nodes)
        nodes.append((node, lighter, heavier, part, part + rest))
        heapq.heappush(heap, (part + rest, node))
    return nodes[::-1]


@dataclass(frozen=True, eq=False)
class Mixture:
    """One split of the sources that a phase reads, and their shares; a single build is a mixture of one.

    Attributes:
        sources: The shards of each source. All have the same settings.
        names: Their names; empty for a single build.
        weights: Share of the instances that each one has, in any unit.
    """

    sources: tuple[ShardSet, ...]
    names: tuple[str, ...] = ("",)
    weights: tuple[int, ...] = (1,)

    @cached_property
    def sha256(self) -> tuple[str, ...]:
        """Identity of each source's data, wherever it is stored."""
        return tuple(source.manifest.data_sha256 for source in self.sources)

    @property
    def first(self) -> ShardSet:
        """The first source, whose tokenizer, metadata and masks all have."""
        return self.sources[0]

    @property
    def num_rows(self) -> int:
        """Number of instances of all sources."""
        return sum(source.num_rows for source in self.sources)

    @property
    def statistics(self) -> InstanceStatistics:
        """Totals of the split; means over its instances are means over the mixture."""
        return self._mixed([source.statistics for source in self.sources])

    def statistics_in(self, phase: PhaseConfig) -> InstanceStatistics:
        """Return these totals under the masks of a phase."""
        return self._mixed([source.statistics_in(phase) for source in self.sources])

    def counts(self, batch: range) -> list[int]:
        """Return how many instances of a batch come from each source.

        Args:
            batch: Numbers of the batch's instances in the phase, from 0.
        """
        before, after = (apportion(self.weights, number) for number in (batch.start, batch.stop))
        return [stop - start for start, stop in zip(before, after, strict=True)]

    def scored(self, max_instances: int) -> list[tuple[ShardSet, int]]:
        """Return how many instances of each source a validation scores, the first ones: its share, but at least one."""
        counts = zip(self.sources, self.counts(range(max_instances)), strict=True)
        return [(source, min(max(1, count), source.num_rows)) for source, count in counts]

    def take(self, positions: Positions, batch: range) -> tuple[dict[str, Ranges], dict[str, DataPosition]]:
        """Return the ranges that hold the instances of a batch, by source, and all positions after them."""
        taken, after = {}, dict(positions)
        for source, key, count in zip(self.sources, self.sha256, self.counts(batch), strict=True):
            taken[key], after[key] = positions.get(key, BEGINNING).take(count, source.num_rows)
        return taken, after

    @cached_property
    def _whole(self) -> ShardSet:
        """The shards of all sources, one source after the other."""
        first = self.first
        return (
            first if len(self.sources) == 1 else ShardSet(first.folder, first.split, first.manifest, *self.sources[1:])
        )

    def rows(self, rows: NDArray[np.int64], sizes: Sizes) -> FlatInstances:
        """Read instances.

        Args:
            rows: Their rows, numbered over all sources (`global_rows`), source by source.
            sizes: How long they are.

        Raises:
            DataError: As `ShardSet.rows`.
        """
        starts = np.cumsum([0, *(source.num_rows for source in self.sources)])
        in_whole = starts[rows >> _ROW_BITS] + (rows & ((1 << _ROW_BITS) - 1))
        return self._whole.rows(in_whole, sizes)._replace(rows=rows)

    def passes(self, instances: int, read: Positions | None = None) -> dict[str, float]:
        """Return the passes over each source's text that a number of instances makes, by the source's name.

        Each pass of a build has put the whole text into its shards once, masked and paired differently.

        Args:
            instances: Instances of the mixture.
            read: Where the sources are before these; None counts these instances alone.
        """
        passes = {}
        for name, key, source, share in zip(self.names, self.sha256, self.sources, self._shares, strict=True):
            before = (read or {}).get(key, BEGINNING)
            rows = before.epoch * source.num_rows + before.offset + instances * share
            passes[name] = rows * len({shard.pass_number for shard in source.shards}) / source.num_rows
        return passes

    def epochs(self, positions: Positions) -> dict[str, float]:
        """Return the passes over the instances of each source that have been made, by the source's name."""
        places = zip(self.at(positions), self.sources, strict=True)
        return {name: place.epoch + place.offset / source.num_rows for (name, place), source in places}

    def at(self, positions: Positions) -> list[tuple[str, DataPosition]]:
        """Return where each source continues, with its name."""
        return [(name, positions.get(key, BEGINNING)) for name, key in zip(self.names, self.sha256, strict=True)]

    def place_of_difference(self, own: Sequence[str], other: Sequence[str]) -> tuple[str, str, str]:
        """Return the folder or URL of the first source in which two lists of identities differ, and both identities."""
        pairs = list(zip_longest(own, other, fillvalue="none"))
        index = next(index for index, (mine, theirs) in enumerate(pairs) if mine != theirs)
        return self.sources[min(index, len(self.sources) - 1)].place, pairs[index][0][:12], pairs[index][1][:12]

    @property
    def _shares(self) -> list[float]:
        return [weight / sum(self.weights) for weight in self.weights]

    def _mixed(self, parts: Sequence[InstanceStatistics]) -> InstanceStatistics:
        rows = sum(part.rows for part in parts)

        def total(name: str) -> int:
            means = (getattr(part, name) / part.rows for part in parts)
            return round(rows * sum(share * mean for share, mean in zip(self._shares, means, strict=True)))

        return replace(parts[0], rows=rows, tokens=total("tokens"), masked_tokens=total("masked_tokens"))


def global_rows(source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return rows of a source as they are numbered over all sources of a mixture."""
    return rows | (source << _ROW_BITS)


class PhaseShards(NamedTuple):
    """The instances of one phase."""

    train: Mixture
    held_out: Mixture


def open_mixture(config: RunConfig, index: int) -> PhaseShards:
    """Open the sources of a phase.

    Raises:
        ConfigError: No data are named.
        DataError: Shards are missing or damaged, one source is named twice, or a batch takes more of a source than it
            has.
    """
    phase = config.phases[index]
    folders = phase_data(config, phase)
    train = {name: ShardSet.open(folder) for name, folder in folders.items()}
    mixture = Mixture(tuple(train.values()), tuple(train), _weights_of(phase, train))
    counts = mixture.counts(range(phase.global_batch_size))
    for name, key, source, count in zip(mixture.names, mixture.sha256, mixture.sources, counts, strict=True):
        if mixture.sha256.index(key) != mixture.names.index(name):
            other = mixture.names[mixture.sha256.index(key)]
            raise DataError(f"data.sources: {other} and {name} are the same data ({source.place}). Leave one out.")
        if name and count > source.num_rows:
            raise DataError(
                f"{source.place}: source {name} has {source.num_rows} instances, and a batch of phases[{index}] takes "
                f"{count} of it. Lower its share or global_batch_size, or build it from more text."
            )
    held_out = tuple(ShardSet.open(folders[name], "validation") for name in train)
    return PhaseShards(mixture, replace(mixture, sources=held_out))


def open_training_mixture(config: RunConfig, index: int) -> Mixture | None:
    """Return the instances that a phase trains on; None if the configuration names no data.

    Raises:
        DataError: As `open_mixture`.
    """
    has_data = config.data.path or config.data.sources or config.phases[index].data
    return open_mixture(config, index).train if has_data else None


def _weights_of(phase: PhaseConfig, sources: Mapping[str, ShardSet]) -> tuple[int, ...]:
    """Return each source's share of the instances, in parts of ``_UNITS``; by size it is its number of instances."""
    totals = {name: source.statistics for name, source in sources.items()}
    if phase.mixture is not None:
        tokens = phase.mixture
    elif phase.temperature is not None:
        tokens = {name: total.tokens**phase.temperature for name, total in totals.items()}
    else:
        return tuple(total.rows for total in totals.values())
    instances = [tokens[name] * total.rows / total.tokens for name, total in totals.items()]
    whole = math.fsum(instances)
    return tuple(math.ceil(_UNITS * count / whole) for count in instances)
