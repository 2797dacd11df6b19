"""The public ``attention``: BERT's, in which each token attends to all tokens of its sequence."""

# B sequences, T packed tokens, N heads, H head width, D = N * H, C = 3 * D

from torch import Tensor

from megabert.ops.attention.dense.cpu import AttentionBlocks, attention_torch, plan_blocks
from megabert.ops.attention.dropout import AttentionDropout
from megabert.ops.backend import Backend, choose, no_obstacle, triton_obstacle


def plan_attention(cu_seqlens: Tensor, *, tokens: int, num_heads: int, backend: str = "auto") -> AttentionBlocks | None:
    """Work out once for all layers of a micro-batch how a CPU lays out its tokens.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts.
        tokens: T, padding included.
        num_heads: N.
        backend: The same as for ``attention``.

    Returns:
        The layout, or None if the backend that runs needs none.
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
    dropout: AttentionDropout | None = None,
    blocks: AttentionBlocks | None = None,
    bias_C: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Mix tokens within each sequence: softmax(Q K^T / sqrt(H)) V per head (Vaswani et al. 2017, section 3.2).

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D), each (N, H); float16, bfloat16, float32 or float64.
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts; the last is where the last one ends. Sequences
            of length 0 are allowed. Tokens past the last boundary belong to no sequence and get zeros.
        max_seqlen: At least the longest length.
        num_heads: N.
        dropout: Dropout of the probabilities; None drops nothing.
        blocks: What ``plan_attention`` returned for the same sequences; None works it out here.
        bias_C: The bias that ``qkv_TC`` has already, if it is to get its gradient from here: a kernel has two
            thirds of it in registers. It changes no value. With None the bias gets its gradient where it was added.
        backend: ``auto``, ``triton`` or ``torch``.

    Returns:
        Shape (T, D) in the dtype of ``qkv_TC``; the softmax is taken in float32 (float64 for float64).

    Raises:
        KernelError: The backend cannot run here.
    """
    run = choose("attention", backend, BACKENDS, qkv_TC.device.type)
    options = {"max_seqlen": max_seqlen, "num_heads": num_heads, "dropout": dropout, "blocks": blocks}
    return run(qkv_TC, cu_seqlens, bias_C=bias_C, **options)


BACKENDS = (
    Backend("triton", "megabert.ops.attention.dense.triton:attention_triton", triton_obstacle),
    Backend("torch", attention_torch, no_obstacle),
)
