"""What ``cross_entropy`` means, in plain torch: float32, or float64 for float64 input."""

# M predicted positions, V classes

import torch
from torch import Tensor


def row_cross_entropy_reference(logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of each row and the count of right answers; see ``api.row_cross_entropy``."""
    compute = torch.float64 if logits_MV.dtype == torch.float64 else torch.float32
    counted_MV, counted_labels_M = logits_MV[labels_M >= 0].to(compute), labels_M[labels_M >= 0]
    target_M = counted_MV.gather(1, counted_labels_M[:, None])[:, 0]
    losses_M = torch.zeros_like(labels_M, dtype=compute)
    losses_M = losses_M.masked_scatter(labels_M >= 0, counted_MV.logsumexp(1) - target_M)
    return losses_M, (target_M >= counted_MV.amax(1)).sum()
