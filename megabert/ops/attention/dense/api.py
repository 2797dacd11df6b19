"""The public ``attention``: BERT's, in which each token attends to all tokens of its sequence."""

# B sequences, T packed tokens, N heads, H head width, D = N * H, C = 3 * D

from torch import Tensor

from megabert.ops.attention.dense.cpu import DenseSequences, attention_torch, plan_blocks
from megabert.ops.backend import choose
from megabert.ops.dropout import AttentionDropout, Heads


def plan_attention(
    cu_seqlens: Tensor, *, tokens: int, max_seqlen: int, num_heads: int, backend: str = "auto"
) -> DenseSequences:
    """Work out once for all layers of a micro-batch how a CPU lays out its tokens.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts.
        tokens: T, padding included.
        max_seqlen: At least the longest length.
        num_heads: N.
        backend: The same as for ``attention``.
    """
    run, blocks = choose("attention", backend, cu_seqlens.device.type), None
    if run is attention_torch and cu_seqlens.device.type == "cpu":
        blocks = plan_blocks(cu_seqlens, tokens=tokens, num_heads=num_heads)
    return DenseSequences(cu_seqlens, max_seqlen, blocks)


def attention(
    qkv_TC: Tensor,
    sequences: DenseSequences,
    *,
    num_heads: int,
    dropout: AttentionDropout | None = None,
    bias_C: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Mix tokens within each sequence: softmax(Q K^T / sqrt(H)) V per head (Vaswani et al. 2017, section 3.2).

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D), each (N, H); float16, bfloat16, float32 or float64.
        sequences: Their boundaries and layout.
        num_heads: N.
        dropout: Dropout of the probabilities; None drops nothing.
        bias_C: The bias that ``qkv_TC`` has already, if it is to get its gradient from here: a kernel has two
            thirds of it in registers. It changes no value. With None the operation
            that added the bias computes its gradient.
        backend: ``auto``, ``triton`` or ``torch``.

    Returns:
        Shape (T, D) in the dtype of ``qkv_TC``; the softmax is taken in float32 (float64 for float64).

    Raises:
        KernelError: The backend cannot run here.
    """
    run = choose("attention", backend, qkv_TC.device.type)
    return run(qkv_TC, sequences, Heads(num_heads, dropout), bias_C)
