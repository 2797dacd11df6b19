"""The public ``disentangled_attention``: DeBERTa's, whose scores add relative positions (He et al. 2021, section 3.1).

    score(i, j) = (q_i . k_j + q_i . pk_d + k_j . pq_d) / sqrt(H * (1 + position scores)),   d = i - j

``pk`` and ``pq`` are keys and queries of relative positions; either may be left out.
"""

# T packed tokens, B sequences, N heads, H head width, D = N * H, C = 3 * D

from torch import Tensor

from megabert.ops.attention.disentangled import cpu
from megabert.ops.backend import choose
from megabert.ops.dropout import AttentionDropout, Heads


def plan_disentangled_attention(
    cu_seqlens: Tensor, *, tokens: int, max_seqlen: int, num_heads: int, backend: str = "auto"
) -> cpu.DisentangledSequences:
    """Work out once for all layers of a micro-batch how plain torch lays out its tokens; the kernels need no layout.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts. Tokens past the last boundary belong to none.
        tokens: T, padding included.
        max_seqlen: At least the longest length.
        num_heads: N.
        backend: The same as for ``disentangled_attention``.
    """
    run, groups = choose("disentangled_attention", backend, cu_seqlens.device.type), None
    if run is cpu.disentangled_attention_torch:
        groups = cpu.plan_groups(cu_seqlens, tokens=tokens, max_seqlen=max_seqlen, num_heads=num_heads)
    return cpu.DisentangledSequences(cu_seqlens, max_seqlen, groups)


def disentangled_attention(
    qkv_TC: Tensor,
    positions: cpu.RelativePositions,
    sequences: cpu.DisentangledSequences,
    *,
    num_heads: int,
    dropout: AttentionDropout | None = None,
    backend: str = "auto",
) -> Tensor:
    """Mix tokens within each sequence by their contents and their distances.

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D), each (N, H).
        positions: Keys and queries of relative positions, projected by the same layer.
        sequences: What ``plan_disentangled_attention`` returned for the same backend.
        num_heads: N.
        dropout: Dropout of the probabilities; None drops nothing.
        backend: ``auto``, ``triton`` or ``torch``.

    Returns:
        Shape (T, D) in the dtype of ``qkv_TC``, zero at tokens of no sequence; the softmax is float32 or better.

    Raises:
        KernelError: The backend cannot run here.
    """
    run = choose("disentangled_attention", backend, qkv_TC.device.type)
    return run(qkv_TC, positions, sequences, Heads(num_heads, dropout))
