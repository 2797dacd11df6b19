"""The public LAMB op (You et al. 2020): two passes over flat shards of parameters, and the choice of backend.

Pass 1 (``compute_update``) updates the moments, writes the update over the gradient and adds up the squared norms of
weights and update for each parameter; the optimizer then all-reduces one small vector; pass 2 (``apply_update``) moves
the weights. Tested on CPU against a float64 reference (tests/unit/ops/test_lamb_passes.py). Apex's FusedLAMB is a whole
optimizer over whole parameters, not these passes: megabert.optim.apex_lamb.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from megabert.ops.backend import choose


class SlotFragment(NamedTuple):
    """Elements of one parameter within a flat tensor: the optimizer's fragment, with a slot in place of its name."""

    offset: int
    """First element in the flat tensor."""
    numel: int
    """Number of elements."""
    slot: int
    """The parameter's column in the vector of squared norms."""


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """The numbers of one step: ``u = (exp_avg_scale * m) / (sqrt(exp_avg_sq_scale * v) + eps) + weight_decay * w``."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    gradient_scale: float | Tensor = 1.0
    """Factor on the gradient: clipping, and the mean over ranks. A float64 scalar on the device need not be known to
    the host yet. 0 leaves weights, gradient and moments as they are, whatever the gradient holds."""
    exp_avg_scale: float = 1.0
    """1 / (1 - beta1**t) if the variant corrects for the moments' start at zero."""
    exp_avg_sq_scale: float = 1.0
    """1 / (1 - beta2**t) likewise."""
    measures_gradient: bool = False
    """Whether row 0 of ``squares`` takes the gradient in place of the weights: ``g / max(sqrt(v_hat), eps)``, with the
    new second moment, corrected by ``exp_avg_sq_scale``. StableAdamW needs its mean square."""


class Passes(NamedTuple):
    """A backend's two passes over a flat; both take ``fragments`` and leave all else alone."""

    compute_update: Callable[..., None]
    """Update the moments, write the update over the gradient, and add each fragment's squared norms to ``squares``.

    Positional arguments, one-dimensional float32 (or float64) tensors of one shape:
        weights: Master shard; not changed.
        gradient: Its gradient, to be multiplied by ``coefficients.gradient_scale``; becomes the update.
        exp_avg: First moment, changed in place.
        exp_avg_sq: Second moment, changed in place.

    Keyword arguments:
        coefficients: The step's numbers.
        fragments: Which elements belong to which parameter; the others are padding, whatever they hold.
        squares: Float64 of shape (2, slots): row 0 takes sums of w**2, or as ``measures_gradient`` says, row 1 sums of
            u**2.
    """
    apply_update: Callable[..., None]
    """Add ``scales[slot] * update`` to the weights.

    Positional arguments:
        weights: Master shard, changed in place.
        update: The update that the first pass left in the gradient's place.

    Keyword arguments:
        fragments: The same as in the first pass.
        scales: Float64, one number per slot: ``-learning_rate * trust_ratio``. 0 leaves the weights as they are,
            whatever the update holds.
        rounded: The model's weights, laid out as the master shard, which take the result in their own dtype; by default
            there are none.
    """


def lamb_passes(backend: str, device: str) -> Passes:
    """Return both passes for a device type.

    Args:
        backend: ``auto``, ``triton`` or ``torch``.
        device: Device type of the flats.

    Raises:
        KernelError: The backend cannot run here.
    """
    passes: Passes = choose("lamb", backend, device)
    return passes
