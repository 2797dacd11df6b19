"""The public ``attention`` and its choice of backend."""

# T packed tokens, B sequences, N heads, H head width, D = N * H

from typing import Any

from torch import Tensor

from megabert.ops.attention.torch_backend import attention_torch, plan_blocks
from megabert.ops.backend import Backend, choose, no_obstacle, triton_obstacle
from megabert.ops.dropout import Dropout

BACKENDS = {
    "triton": Backend("triton", "megabert.ops.attention.triton:attention_triton", triton_obstacle),
    "torch": Backend("torch", attention_torch, no_obstacle),
}


def plan_attention(cu_seqlens: Tensor, *, tokens: int, num_heads: int, backend: str = "auto") -> Any:
    """Return what ``attention`` can work out once for all layers of a micro-batch, or None where nothing is.

    Args:
        cu_seqlens: Int32 of shape (B + 1,).
        tokens: T, padding included.
        num_heads: N.
        backend: As for ``attention``.
    """
    run = choose("attention", backend, BACKENDS, cu_seqlens.device.type)
    if run is attention_torch and cu_seqlens.device.type == "cpu":
        return plan_blocks(cu_seqlens, tokens=tokens, num_heads=num_heads)
    return None


def attention(
    qkv_TC: Tensor,
    cu_seqlens: Tensor,
    *,
    max_seqlen: int,
    num_heads: int,
    dropout: Dropout | None = None,
    plan: Any = None,
    backend: str = "auto",
) -> Tensor:
    """Mix tokens within each sequence (Vaswani et al. 2017, section 3.2).

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D), each (N, H); float16, bfloat16, float32 or float64.
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts; the last is where the last one ends. Sequences
            of length 0 are allowed; tokens past the last belong to no sequence and get zeros.
        max_seqlen: At least the longest length.
        num_heads: N.
        dropout: Site with row keys of shape (T, N), for the probabilities; None drops nothing.
        plan: Of ``plan_attention`` for the same sequences; None works it out here.
        backend: ``auto``, ``triton`` or ``torch``.

    Returns:
        Shape (T, D) in the dtype of ``qkv_TC``; the softmax is taken in float32 (float64 for float64).

    Raises:
        KernelError: The backend cannot run here.
    """
    run = choose("attention", backend, BACKENDS, qkv_TC.device.type)
    return run(qkv_TC, cu_seqlens, max_seqlen=max_seqlen, num_heads=num_heads, dropout=dropout, plan=plan)
