"""Every op with Triton kernels, run forward and backward on meta tensors; `cases` lists the launches to compile."""

import torch

from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.dense.triton import attention_triton
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions
from megabert.ops.attention.disentangled.triton import disentangled_attention_triton
from megabert.ops.attention.rotary.cpu import RotarySequences
from megabert.ops.attention.rotary.triton import rotary_attention_triton
from megabert.ops.bias_gelu.triton import bias_gelu_triton
from megabert.ops.cross_entropy.triton import cross_entropy_triton
from megabert.ops.dense import dense
from megabert.ops.dropout import AttentionDropout, Dropout, Heads
from megabert.ops.gated_gelu.triton import gated_gelu_triton
from megabert.ops.lamb import Coefficients, SlotFragment
from megabert.ops.lamb.triton import apply_update, compute_update
from megabert.ops.layer_norm.triton import layer_norm_triton
from megabert.ops.triton_support.dropout_kernels import dropped_triton, row_keys_triton
from megabert.ops.triton_support.row_casts import cast_rows_triton
from megabert.ops.triton_support.table_gradients import table_gradient_triton

TOKENS = 16_384


def meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)


def product(dtype: torch.dtype, width: int, in_fp8: bool) -> torch.Tensor:
    """Return the output of a dense layer, of products in 8 bits or of none."""
    x = meta(TOKENS, width, dtype=dtype)
    return dense(x, meta(width, width, dtype=dtype), in_fp8=True) if in_fp8 else x


def layer_norm(dtype: torch.dtype, width: int, dropout: bool, in_fp8: bool = False) -> None:
    site = Dropout(0.1, meta(TOKENS, dtype=torch.int32)) if dropout else None
    x, residual = product(dtype, width, in_fp8), meta(TOKENS, width, dtype=dtype)
    weight, bias, input_bias = (meta(width, dtype=dtype) for _ in range(3))
    twice = layer_norm_triton(x, weight, bias, input_bias, residual, 1e-12, site, False)
    torch.autograd.backward(twice, [torch.empty_like(y) for y in twice])


def add_layer_norm(dtype: torch.dtype, width: int, dropout: bool, in_fp8: bool = False) -> None:
    site = Dropout(0.1, meta(TOKENS, dtype=torch.int32)) if dropout else None
    x, residual = product(dtype, width, in_fp8), meta(TOKENS, width, dtype=dtype)
    twice = layer_norm_triton(x, meta(width, dtype=dtype), None, None, residual, 1e-5, site, True)
    torch.autograd.backward(twice, [torch.empty_like(y) for y in twice])


def keyed_dropout(dtype: torch.dtype, width: int) -> None:
    keys = row_keys_triton(meta(TOKENS, dtype=torch.int32), 7)
    dropped_triton(meta(TOKENS, width, dtype=dtype), Dropout(0.1, keys))


def row_cast(dtype: torch.dtype, width: int) -> None:
    cast_rows_triton(meta(TOKENS, width, dtype=dtype))


def embedding(dtype: torch.dtype, width: int, rows: int) -> None:
    order, first = meta(TOKENS, dtype=torch.int64), meta(rows + 1, dtype=torch.int64)
    table_gradient_triton(meta(TOKENS, width, dtype=dtype).detach(), order, first)


def bias_gelu(dtype: torch.dtype, width: int, approximate: bool, in_fp8: bool = False) -> None:
    out = bias_gelu_triton(product(dtype, width, in_fp8), meta(width, dtype=dtype), approximate=approximate)
    out.backward(torch.empty_like(out))


def gated_gelu(dtype: torch.dtype, width: int, approximate: bool, in_fp8: bool = False) -> None:
    out = gated_gelu_triton(product(dtype, 2 * width, in_fp8), approximate=approximate)
    out.backward(torch.empty_like(out))


def attention(
    dtype: torch.dtype, max_seqlen: int, heads: int, head_width: int, dropout: bool, sequences: int = 128
) -> None:
    seeds, constants = meta(sequences, dtype=torch.int32), meta(heads, dtype=torch.int32)
    site = AttentionDropout(0.1, seeds, constants) if dropout else None
    out = attention_triton(
        meta(TOKENS, 3 * heads * head_width, dtype=dtype),
        DenseSequences(meta(sequences + 1, dtype=torch.int32), max_seqlen),
        Heads(heads, site),
        meta(3 * heads * head_width, dtype=dtype),
    )
    out.backward(torch.empty_like(out))


def rotary_attention(dtype: torch.dtype, reach: int | None, heads: int, head_width: int, dropout: bool) -> None:
    seeds, constants = meta(32, dtype=torch.int32), meta(heads, dtype=torch.int32)
    sequences = RotarySequences(meta(33, dtype=torch.int32), 8192, meta(8192, dtype=torch.int64))
    out = rotary_attention_triton(
        meta(TOKENS, 3 * heads * head_width, dtype=dtype),
        torch.empty(8192, 2, head_width // 2, device="meta"),
        sequences,
        Heads(heads, AttentionDropout(0.1, seeds, constants) if dropout else None),
        reach=reach,
    )
    out.backward(torch.empty_like(out))


def disentangled_attention(
    dtype: torch.dtype, heads: int, head_width: int, dropout: bool, terms: tuple[str, ...] = ("c2p", "p2c")
) -> None:
    seeds, constants = meta(128, dtype=torch.int32), meta(heads, dtype=torch.int32)
    key_PD, query_PD = (meta(511, heads * head_width, dtype=dtype) if one in terms else None for one in ("c2p", "p2c"))
    out = disentangled_attention_triton(
        meta(TOKENS, 3 * heads * head_width, dtype=dtype),
        RelativePositions(key_PD, query_PD, meta(1023, dtype=torch.int32)),
        DisentangledSequences(meta(129, dtype=torch.int32), 512),
        Heads(heads, AttentionDropout(0.1, seeds, constants) if dropout else None),
    )
    out.backward(torch.empty_like(out))


def cross_entropy(dtype: torch.dtype, classes: int) -> None:
    losses, _ = cross_entropy_triton(meta(2560, classes, dtype=dtype), meta(2560, dtype=torch.int64))
    losses.sum().backward()


def lamb(measures_gradient: bool) -> None:
    flats = [torch.empty(1 << 20, device="meta") for _ in range(4)]
    squares = torch.empty(2, 400, dtype=torch.float64, device="meta")
    coefficients = Coefficients(
        beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01, measures_gradient=measures_gradient
    )
    fragments = [SlotFragment(0, 1 << 19, 7), SlotFragment(1 << 19, 1000, 8)]
    compute_update(*flats, coefficients=coefficients, fragments=fragments, squares=squares)
    rounded = torch.empty(1 << 20, dtype=torch.bfloat16, device="meta")
    apply_update(flats[0], flats[1], fragments=fragments, scales=squares[0], rounded=rounded)


def cases(everything: bool):
    """Label, op and its arguments: BERT-Large's shapes in bfloat16; with ``--all`` the other dtypes and shapes too."""
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    yield "bf16 1024", keyed_dropout, (bf16, 1024)
    yield "bf16 1024", embedding, (bf16, 1024, 30_528)
    for width in (1024, 4096):
        yield f"bf16 {width} fp8", row_cast, (bf16, width)
    for in_fp8, end in ((False, ""), (True, " fp8")):
        yield f"bf16 1024{end}", layer_norm, (bf16, 1024, True, in_fp8)
        yield f"bf16 1024 pre-norm{end}", add_layer_norm, (bf16, 1024, False, in_fp8)
        yield f"bf16 4096 erf{end}", bias_gelu, (bf16, 4096, False, in_fp8)
        yield f"bf16 2624 erf{end}", gated_gelu, (bf16, 2624, False, in_fp8)  # ModernBERT-large
    yield "bf16 30528", cross_entropy, (bf16, 30_528)
    yield "f32", lamb, (False,)
    yield "f32 StableAdamW", lamb, (True,)
    for length in (64, 128, 512):
        yield f"bf16 16x64 {length}", attention, (bf16, length, 16, 64, True)
    yield "bf16 16x64 512 few", attention, (bf16, 512, 16, 64, True, 8)  # too few for one program a sequence and head
    for reach, label in ((64, "window 128"), (None, "global")):  # ModernBERT-base as it trains: without dropout
        yield f"bf16 12x64 {label}", rotary_attention, (bf16, reach, 12, 64, False)
    yield "bf16 12x64", disentangled_attention, (bf16, 12, 64, True)  # DeBERTa-base, the same at every length
    if everything:
        for width in (128, 768, 2048, 4096):
            yield f"bf16 {width} fp8", layer_norm, (bf16, width, True, True)
            yield f"bf16 {width} pre-norm fp8", add_layer_norm, (bf16, width, True, True)
        for width in (128, 768, 3072, 8192):
            yield f"bf16 {width} fp8", row_cast, (bf16, width)
            yield f"bf16 {width} fp8", bias_gelu, (bf16, width, False, True)
            yield f"bf16 {width} fp8", gated_gelu, (bf16, width, True, True)
        for dtype, name in ((bf16, "bf16"), (f16, "f16"), (f32, "f32")):
            for width in (128, 256, 512, 768, 1024, 2048, 4096):
                for dropout in (False, True):
                    label = f"{name} {width} {'dropout' if dropout else 'plain'}"
                    yield label, layer_norm, (dtype, width, dropout)
                    yield f"{label} pre-norm", add_layer_norm, (dtype, width, dropout)
            for approximate in (False, True):
                for op in (bias_gelu, gated_gelu):
                    yield f"{name} 3072 {'tanh' if approximate else 'erf'}", op, (dtype, 3072, approximate)
            for heads, head_width in ((12, 64), (4, 32), (8, 128), (2, 16)):
                for reach in (64, None):
                    for dropout in (False, True):
                        view = f"{'window 128' if reach else 'global'} {'dropout' if dropout else 'plain'}"
                        arguments = (dtype, reach, heads, head_width, dropout)
                        yield f"{name} {heads}x{head_width} {view}", rotary_attention, arguments
                for dropout, *terms in (
                    (False, "c2p", "p2c"),
                    (True, "c2p", "p2c"),
                    (True, "c2p"),
                    (True, "p2c"),
                    (False,),
                ):
                    label = f"{name} {heads}x{head_width} {'+'.join(terms)} {'dropout' if dropout else 'plain'}"
                    yield label, disentangled_attention, (dtype, heads, head_width, dropout, tuple(terms))
                for length in (32, 64, 128, 256, 512):
                    for dropout in (False, True):
                        label = f"{name} {heads}x{head_width} {length} {'dropout' if dropout else 'plain'}"
                        yield label, attention, (dtype, length, heads, head_width, dropout)
