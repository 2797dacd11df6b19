"""A moving average of the weights over steps, which scores and exports better than the last weights where these jitter.

It averages element by element, so it is as exact on any shard as on the whole: each rank keeps the average of the
masters that it holds, as one more float32 tensor with the layout of each flat, and checkpoints store it by the same
fragment table.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from megabert.optim import Fragment

_SWAPPED_ELEMENTS = 1 << 24
"""Elements that are exchanged at a time, so that a swap needs 64 MiB and not a third copy of the weights."""


class WeightAverage:
    """The exponential moving average of the masters that this rank holds."""

    def __init__(self, fragments: Sequence[Fragment], decay: float, refresh: Callable[[], None]) -> None:
        """Begin with the present masters.

        Args:
            fragments: This rank's fragments.
            decay: Share of the average that an update keeps, once there have been many updates.
            refresh: Copies the masters into the model's weights, on every rank (`Engine.refresh`).
        """
        self.decay, self._refresh = decay, refresh
        self._flats = {id(fragment.flat): fragment.flat for fragment in fragments}
        self._averages = {key: flat.detach().clone() for key, flat in self._flats.items()}

    def of(self, flat: Tensor) -> Tensor:
        """Return the average of a flat, with its layout."""
        return self._averages[id(flat)]

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Take the masters in, after an update of theirs.

        The first averages would be little but the random weights of the beginning, so that the average keeps at most
        ``(1 + updates) / (10 + updates)`` of itself, as TensorFlow's ``ExponentialMovingAverage`` does.

        Args:
            updates: Number of updates made in the run, this one included.
        """
        kept = min(self.decay, (1 + updates) / (10 + updates))
        for key, flat in self._flats.items():
            self._averages[key].lerp_(flat, 1 - kept)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the model compute with the average inside; the masters are put back bit for bit. Every rank calls it.

        After an error they are not: putting them back is a collective, in which a rank that fails alone would wait for
        the others, and its error would be heard by nobody.
        """
        self._swap()
        yield
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchange the masters and their average, piece by piece."""
        for key, flat in self._flats.items():
            both = (self._averages[key].view(-1), flat.detach().view(-1))
            for average, master in zip(*(tensor.split(_SWAPPED_ELEMENTS) for tensor in both), strict=True):
                kept = average.clone()
                average.copy_(master)
                master.copy_(kept)
        self._refresh()
