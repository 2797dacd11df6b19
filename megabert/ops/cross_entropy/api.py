"""The public ``cross_entropy`` and its choice of backend."""

# M predicted positions, V classes

from torch import Tensor

from megabert.ops.backend import choose


def cross_entropy(logits_MV: Tensor, labels_M: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Return the cross-entropy summed over rows, and how many rows are right; see `row_cross_entropy`.

    Returns:
        The loss in nats, a float32 scalar (float64 for float64 logits), and an int64 scalar: the rows in which no logit
        is above the label's.
    """
    losses_M, correct = row_cross_entropy(logits_MV, labels_M, backend=backend)
    return losses_M.sum(), correct


def row_cross_entropy(logits_MV: Tensor, labels_M: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of each row, for sums in which rows have weights, and how many rows are right.

    Args:
        logits_MV: Unnormalised scores; float16, bfloat16, float32 or float64. -inf excludes a class.
        labels_M: Int64 classes. Rows with a negative label (-100 on padding) count in neither result.
        backend: ``auto``, ``triton`` or ``torch``.

    Returns:
        The losses in nats, float32 (float64 for float64 logits), 0 in rows that do not count, and an int64 scalar: the
        rows in which no logit is above the label's.

    Raises:
        KernelError: The backend cannot run here.
    """
    return choose("cross_entropy", backend, logits_MV.device.type)(logits_MV, labels_M)
