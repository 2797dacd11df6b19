"""ZeRO-1's weights: gathered from their owners bucket by bucket, while the next step's first layers already run.

As soon as the optimizer has updated a bucket's masters, they are rounded into this rank's window of the model's weights
(LAMB rounds while it updates) and the gathering of the other windows is started. Whoever uses a weight has to wait for
its bucket first:

- a layer waits when it is called, by a hook. A layer is a member of a ``ModuleList``: nobody else reads its weights;
- everything else (embeddings, heads, tied weights) is waited for before the model is called, since a weight outside of
  the layers may be read anywhere.

On a GPU it is the stream that waits, not the host.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from megabert.engine.buckets import Bucket
from megabert.engine.exchange import Flat, TwoLegs, Work


class WeightGathering:
    """The weights that are under way between two steps."""

    def __init__(self, model: nn.Module, buckets: Sequence[Bucket], exchange: Flat | TwoLegs) -> None:
        """Put a hook on every layer."""
        self._exchange = exchange
        self._buckets = {id(bucket.master): bucket for bucket in buckets}
        self._under_way: dict[int, Work] = {}  # by id of the bucket's master
        bucket_of = {id(p): id(bucket.master) for bucket in buckets for p in bucket.parameters.values()}
        in_layers: set[int] = set()
        for layer in _layers(model):
            parameters = {id(parameter) for parameter in layer.parameters()}
            in_layers |= parameters
            needed = {bucket_of[key] for key in parameters if key in bucket_of}
            layer.register_forward_pre_hook(lambda *_, needed=needed: self._wait_for(needed))
        self._outside = {bucket for key, bucket in bucket_of.items() if key not in in_layers}

    def start(self, master: Tensor, *, is_rounded: bool) -> None:
        """Round the masters of a bucket into the model's weights, unless that is done, and gather the other ranks'."""
        bucket = self._buckets[id(master)]
        if not is_rounded:
            bucket.round_masters()
        if not bucket.is_alone:
            self._under_way[id(master)] = self._exchange.gather(bucket.weights, bucket.window)

    def before_forward(self) -> None:
        """Wait for the weights outside of the layers."""
        self._wait_for(self._outside)

    def check_forward(self) -> None:
        """Make sure that the forward pass has waited for all weights.

        Raises:
            RuntimeError: A layer's weights were used, if at all, before they were there.
        """
        if self._under_way:
            names = [name for key in self._under_way for name in self._buckets[key].parameters]
            raise RuntimeError(
                f"The model has not called the layers with {names[0]} ... {names[-1]}, so nobody has waited for their "
                "weights. Call the modules of a ModuleList, and do not read their weights from outside."
            )

    def settle(self) -> None:
        """Wait for all weights."""
        self._wait_for(set(self._under_way))

    def refresh(self) -> None:
        """Gather all weights anew from the masters, and wait for them; every rank calls it."""
        self.settle()
        for bucket in self._buckets.values():
            self.start(bucket.master, is_rounded=False)
        self.settle()

    def _wait_for(self, needed: set[int]) -> None:
        for key in [key for key in self._under_way if key in needed]:
            self._under_way.pop(key).wait()


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of the outermost ModuleLists."""
    for child in model.children():
        yield from child if isinstance(child, nn.ModuleList) else _layers(child)
