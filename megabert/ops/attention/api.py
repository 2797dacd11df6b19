"""The public ``attention`` and its choice of backend."""

# T packed tokens, B sequences, N heads, H head width, D = N * H, C = 3 * D

from torch import Tensor

from megabert.ops.attention.torch_backend import AttentionBlocks, attention_torch, plan_blocks
from megabert.ops.backend import Backend, TensorOp, choose, no_obstacle, triton_obstacle
from megabert.ops.dropout import Dropout

BACKENDS: dict[str, Backend[TensorOp]] = {
    "triton": Backend("triton", "megabert.ops.attention.triton:attention_triton", triton_obstacle),
    "torch": Backend("torch", attention_torch, no_obstacle),
}


def plan_attention(cu_seqlens: Tensor, *, tokens: int, num_heads: int, backend: str = "auto") -> AttentionBlocks | None:
    """Work out once for all layers of a micro-batch how a CPU lays out its tokens.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts.
        tokens: T, padding included.
        num_heads: N.
        backend: The same as for ``attention``.

    Returns:
        The layout, or None where the backend that runs needs none.
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
    blocks: AttentionBlocks | None = None,
    backend: str = "auto",
) -> Tensor:
    """Mix tokens within each sequence: softmax(Q K^T / sqrt(H)) V per head (Vaswani et al. 2017, section 3.2).

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D), each (N, H); float16, bfloat16, float32 or float64.
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts; the last is where the last one ends. Sequences
            of length 0 are allowed. Tokens past the last boundary belong to no sequence and get zeros.
        max_seqlen: At least the longest length.
        num_heads: N.
        dropout: Dropout of the probabilities, with row keys of shape (T, N); None drops nothing.
        blocks: What ``plan_attention`` returned for the same sequences; None works it out here.
        backend: ``auto``, ``triton`` or ``torch``.

    Returns:
        Shape (T, D) in the dtype of ``qkv_TC``; the softmax is taken in float32 (float64 for float64).

    Raises:
        KernelError: The backend cannot run here.
    """
    run = choose("attention", backend, BACKENDS, qkv_TC.device.type)
    return run(qkv_TC, cu_seqlens, max_seqlen=max_seqlen, num_heads=num_heads, dropout=dropout, blocks=blocks)
