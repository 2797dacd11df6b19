"""Part `ops`: each op's time, that of SDPA's fastest backends without dropout, and the ceilings.

The part `peers` measures the same ops of torch eager, torch.compile, SDPA with dropout, Apex and other packages.
"""

# T packed tokens, D hidden, F intermediate, N heads, H head width, M predicted positions, V classes

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from benchmarks.gpu.attention_inputs import (
    Op,
    disentangled_peers,
    packed_attention,
    packed_disentangled_attention,
)
from benchmarks.gpu.clock import copy_gb_per_s, matmul_tflop_per_s, median_ms
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes
from megabert.ops.attention.rotary.api import plan_rotary_attention, rotary_attention, turns_of
from megabert.ops.attention.rotary.cpu import turn
from megabert.ops.bias_gelu.api import bias_gelu
from megabert.ops.cross_entropy.api import cross_entropy
from megabert.ops.dropout import ATTENTION_OUTPUT
from megabert.ops.gated_gelu.api import gated_gelu
from megabert.ops.lamb import Coefficients, SlotFragment, lamb_passes
from megabert.ops.layer_norm.api import layer_norm
from megabert.ops.proof.inputs import boundaries, dropout_stream, near_positions, packed_positions

OURS, PEERS, COMPILED = range(3)
"""Turns in which rows are measured: ours, which have the bars, other code's, and code that torch compiles slowly."""
WITHOUT_DROPOUT = ", no dropout"


def turn_of(who: str) -> int:
    """Return the turn in which an op by somebody is measured."""
    if who in ("torch.compile", "flex_attention"):
        return COMPILED
    return OURS if who == "megabert" or (who.startswith("sdpa ") and who.endswith(WITHOUT_DROPOUT)) else PEERS


class Ops:
    """Measures rows on one device."""

    def __init__(self, rows: Rows, device: torch.device, sizes: Sizes) -> None:
        self.rows, self.device, self.sizes = rows, device, sizes
        self.turn = OURS
        self.dtype = torch.bfloat16
        self.ours = "triton" if device.type == "cuda" else "auto"
        copy = rows.measure("ceiling copy", lambda: {"gb_per_s": copy_gb_per_s(device, sizes.copy_numel)}) or {}
        rate = rows.measure(
            "ceiling matmul bfloat16",
            lambda: {"tflop_per_s": matmul_tflop_per_s(device, sizes.matmul, self.dtype)},
        )
        self.copy = copy.get("gb_per_s")
        self.matmul = (rate or {}).get("tflop_per_s")

    def compiled(self, op: Op) -> Op:
        """Return ``op`` under torch.compile; on a CPU without its code generation, which a rehearsal need not await."""
        # By default torch compiles a second length for any length: slower, and its backward pass cannot be repeated.
        return torch.compile(op, backend="inductor" if self.device.type == "cuda" else "eager", dynamic=False)

    def random(self, *shape: int) -> Tensor:
        """Return random numbers of the benchmark's dtype that want a gradient."""
        return torch.randn(*shape, device=self.device).to(self.dtype).requires_grad_()

    def compare(self, name: str, ops: dict[str, Op], leaves: tuple[Tensor, ...], work: dict[str, tuple[float, float]]):
        """Measure each op whose turn it is forward and backward.

        Args:
            name: Of the op and its shape.
            ops: By who runs it.
            leaves: Arguments, all with a gradient.
            work: ``forward`` and ``backward`` -> (bytes that must move, floating-point operations).
        """
        for who, op in ops.items():
            if turn_of(who) != self.turn:
                continue
            is_peer = who != "megabert"
            forward = functools.partial(op, *leaves)
            self.rows.measure(
                f"{name} forward {who}", lambda run=forward: self.row(run, *work["forward"]), is_peer=is_peer
            )

            def backward(op: Op = op) -> Row:
                out = op(*leaves)
                grad = torch.randn_like(out)
                return self.row(
                    lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True, allow_unused=True),
                    *work["backward"],
                )

            self.rows.measure(f"{name} backward {who}", backward, is_peer=is_peer)

    def row(self, function: Callable[[], Any], moved: float, operations: float = 0.0) -> Row:
        """Return ms, rate, and share of the ceiling that is nearer."""
        ms = median_ms(function, self.device)
        row: Row = {"ms": round(ms, 4)}
        if moved:
            row["gb_per_s"] = round(moved / ms / 1e6, 1)
            row["share_of_copy"] = round(row["gb_per_s"] / self.copy, 3) if self.copy else None
        if operations:
            row["tflop_per_s"] = round(operations / ms / 1e9, 2)
            row["share_of_matmul"] = round(row["tflop_per_s"] / self.matmul, 3) if self.matmul else None
        return row

    def layer_norm(self) -> None:
        """Bias + dropout + residual + LayerNorm: reads 2 and writes 1 forward, reads 3 and writes 2 backward."""
        tokens, width = self.sizes.tokens, self.sizes.hidden
        site = dropout_stream([tokens], tokens, self.device).site(0, ATTENTION_OUTPUT, 0.1)

        def ours(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, input_bias: Tensor) -> Tensor:
            options: dict[str, Any] = {"eps": 1e-12, "dropout": site, "backend": self.ours}
            return layer_norm(x, weight, bias, input_bias_D=input_bias, residual_TD=residual, **options)[0]

        def eager(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, input_bias: Tensor) -> Tensor:
            z = residual + functional.dropout(x + input_bias, 0.1)
            return functional.layer_norm(z, (width,), weight, bias, 1e-12)

        ops = {"megabert": ours, "torch eager": eager, "torch.compile": self.compiled(eager)}
        if importlib.util.find_spec("apex") is not None:
            from apex.normalization.fused_layer_norm import fused_layer_norm_affine

            ops["apex"] = lambda x, residual, weight, bias, input_bias: fused_layer_norm_affine(
                residual + functional.dropout(x + input_bias, 0.1), weight, bias, (width,), 1e-12
            )
        rows = (self.random(tokens, width), self.random(tokens, width))
        leaves = (*rows, *(self.random(width) for _ in range(3)))
        moved = rows[0].nbytes
        self.compare(
            f"layer_norm {tokens}x{width}", ops, leaves, {"forward": (3 * moved, 0), "backward": (5 * moved, 0)}
        )

    def bias_gelu(self) -> None:
        """GELU(x + bias): reads 1 and writes 1 forward, reads 2 and writes 1 backward."""
        tokens, width = self.sizes.tokens, self.sizes.intermediate
        leaves = (self.random(tokens, width), self.random(width))

        def eager(x: Tensor, bias: Tensor) -> Tensor:
            return functional.gelu(x + bias)

        ops: dict[str, Op] = {
            "megabert": lambda x, bias: bias_gelu(x, bias, backend=self.ours),
            "torch eager": eager,
            "torch.compile": self.compiled(eager),
        }
        moved = leaves[0].nbytes
        self.compare(
            f"bias_gelu {tokens}x{width}", ops, leaves, {"forward": (2 * moved, 0), "backward": (3 * moved, 0)}
        )

    def gated_gelu(self) -> None:
        """GELU of one half times the other: reads 2 and writes 1 forward, reads 3 and writes 2 backward."""
        tokens, width = self.sizes.tokens, self.sizes.intermediate // 2
        leaves = (self.random(tokens, 2 * width),)

        def eager(x: Tensor) -> Tensor:
            passed, gate = x.chunk(2, -1)
            return functional.gelu(passed) * gate

        ops: dict[str, Op] = {
            "megabert": lambda x: gated_gelu(x, backend=self.ours),
            "torch eager": eager,
            "torch.compile": self.compiled(eager),
        }
        moved = leaves[0].nbytes // 2
        self.compare(
            f"gated_gelu {tokens}x{width}", ops, leaves, {"forward": (3 * moved, 0), "backward": (5 * moved, 0)}
        )

    def cross_entropy(self) -> None:
        """Loss over the vocabulary at masked positions: reads 1 forward, reads 1 and writes 1 backward."""
        rows, classes = max(8, self.sizes.tokens // 8), -(-self.sizes.vocabulary // 64) * 64
        labels = torch.randint(0, self.sizes.vocabulary, (rows,), device=self.device)
        leaves = (self.random(rows, classes),)

        def eager(logits: Tensor) -> Tensor:
            return functional.cross_entropy(logits.float(), labels, reduction="sum")

        ops: dict[str, Op] = {
            "megabert": lambda logits: cross_entropy(logits, labels, backend=self.ours)[0],
            "torch eager": eager,
            "torch.compile": self.compiled(eager),
        }
        moved = leaves[0].nbytes
        self.compare(
            f"cross_entropy {rows}x{classes}", ops, leaves, {"forward": (moved, 0), "backward": (2 * moved, 0)}
        )

    def attention(self, length: int) -> None:
        """Packed QKV to context; SDPA with its layout copies. 4 T S D operations forward, 10 backward."""
        ours, qkv = packed_attention(self.sizes, length, self.device, self.ours)
        heads, width, tokens = self.sizes.heads, self.sizes.hidden, len(qkv)
        count, head_width = tokens // length, width // heads

        def sdpa(backend: SDPBackend, dropout: float) -> Op:
            def run(qkv: Tensor) -> Tensor:
                q, k, v = qkv.view(count, length, 3, heads, head_width).permute(2, 0, 3, 1, 4)
                with sdpa_kernel(backend):
                    context = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
                return context.transpose(1, 2).reshape(tokens, width)

            return run

        fast = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
        slow = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
        ops = {"megabert": ours}
        ops |= {f"sdpa {name}{WITHOUT_DROPOUT}": sdpa(backend, 0.0) for name, backend in fast.items()}
        ops |= {f"sdpa {name}": sdpa(backend, 0.1) for name, backend in (fast | slow).items()}
        operations, moved = 4.0 * tokens * length * width, qkv.nbytes / 3
        work = {"forward": (4 * moved, operations), "backward": (7 * moved, 2.5 * operations)}
        self.compare(f"attention {count}x{length}x{heads}x{head_width}", ops, (qkv,), work)

    def rotary_attention(self, length: int) -> None:
        """ModernBERT's attention of one length, local and global, without dropout; peers turn in torch first."""
        heads, head_width = self.sizes.rotary_heads, self.sizes.hidden // self.sizes.heads
        count, width, reach = max(1, self.sizes.tokens // length), heads * head_width, self.sizes.reach
        tokens = count * length
        qkv = self.random(tokens, 3 * width)
        lengths = [length] * count
        bounds, positions = boundaries(lengths, self.device), packed_positions(lengths, tokens, self.device)
        turns_T2E = turns_of(positions, 10_000.0, head_width)

        def ours(reach: int | None, backend: str) -> Op:
            sequences = plan_rotary_attention(
                bounds, positions, max_seqlen=length, num_heads=heads, reach=self.sizes.reach, backend=backend
            )
            turns = turns_of(sequences.positions_P, 10_000.0, head_width)
            options: dict[str, Any] = {"reach": reach, "num_heads": heads, "backend": backend}
            return lambda qkv: rotary_attention(qkv, turns, sequences, **options)

        def peer(attend: Callable[..., Tensor]) -> Op:
            def run(qkv: Tensor) -> Tensor:
                turned = turn(qkv, turns_T2E, num_heads=heads).view(count, length, 3, heads, head_width)
                return attend(*turned.permute(2, 0, 3, 1, 4)).transpose(1, 2).reshape(tokens, width)

            return run

        def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return functional.scaled_dot_product_attention(q, k, v)

        compiled_flex = self.compiled(flex_attention)

        @functools.cache
        def near() -> BlockMask:
            """Return which keys are near. It takes longer than attention and is made once, as the plan of ours is."""
            return create_block_mask(
                lambda b, h, i, j: (i - j).abs() <= reach, None, None, length, length, device=self.device.type
            )

        def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return compiled_flex(q, k, v, block_mask=near())

        local_pairs = count * sum(min(length, i + reach + 1) - max(0, i - reach) for i in range(length))
        views = {
            f"window {2 * reach}": (
                local_pairs,
                {"megabert": ours(reach, self.ours), "torch": ours(reach, "torch"), "flex_attention": peer(flex)},
            ),
            "all": (tokens * length, {"megabert": ours(None, self.ours), "sdpa flash": peer(flash)}),
        }
        for view, (pairs, ops) in views.items():
            operations, moved = 4.0 * pairs * width, qkv.nbytes / 3
            work = {"forward": (4 * moved, operations), "backward": (8 * moved, 2.5 * operations)}
            self.compare(f"rotary_attention {count}x{length}x{heads}x{head_width} {view}", ops, (qkv,), work)

    def disentangled_attention(self, length: int) -> None:
        """DeBERTa's attention of one length, dropout on; a part of the products is of contents with positions."""
        heads, head_width = self.sizes.rotary_heads, self.sizes.hidden // self.sizes.heads
        ours, leaves = packed_disentangled_attention(self.sizes, length, self.device, self.ours)
        eager, _ = packed_disentangled_attention(self.sizes, length, self.device, "torch")
        ops = {"megabert": ours, "torch eager": eager, **disentangled_peers(self.sizes, length, self.device)}
        tokens, width = len(leaves[0]), heads * head_width
        positions = int(near_positions(length, self.sizes.span)[-1]) + 1
        operations, moved = 4.0 * tokens * width * (length + positions), leaves[0].nbytes / 3
        work = {"forward": (4 * moved, operations), "backward": (7 * moved, 2.5 * operations)}
        self.compare(f"disentangled_attention {tokens // length}x{length}x{heads}x{head_width}", ops, leaves, work)

    def lamb(self) -> None:
        """Both passes: 28 bytes per parameter, then 12; AdamW's (28) for scale."""
        numel = self.sizes.lamb_numel
        fragments, offset = [], 0
        while offset < numel:  # about BERT-Large's 400 tensors, of two sizes
            size = min((1 << 20) if len(fragments) % 2 else 1024, numel - offset)
            fragments.append(SlotFragment(offset, size, len(fragments)))
            offset += size
        flats = [torch.randn(numel, device=self.device) for _ in range(3)] + [torch.rand(numel, device=self.device)]
        squares = torch.zeros(2, len(fragments), dtype=torch.float64, device=self.device)
        scales = torch.full((len(fragments),), -1e-9, dtype=torch.float64, device=self.device)
        coefficients = Coefficients(beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01)
        shape = f"lamb {numel} in {len(fragments)}"
        for who, backend in (("megabert", self.ours), ("torch eager", "torch")):
            if turn_of(who) != self.turn:
                continue
            passes = lamb_passes(backend, self.device.type)
            self.rows.measure(
                f"{shape} pass 1 {who}",
                lambda passes=passes: self.row(
                    lambda: passes.compute_update(
                        *flats, coefficients=coefficients, fragments=fragments, squares=squares
                    ),
                    28.0 * numel,
                ),
            )
            self.rows.measure(
                f"{shape} pass 2 {who}",
                lambda passes=passes: self.row(
                    lambda: passes.apply_update(flats[0], flats[1], fragments=fragments, scales=scales),
                    12.0 * numel,
                ),
            )
        if self.turn != PEERS:
            return
        parameter = torch.nn.Parameter(flats[0])
        parameter.grad = flats[1]
        adamw = torch.optim.AdamW([parameter], lr=1e-9, fused=True)
        self.rows.measure(f"{shape} torch AdamW fused", lambda: self.row(adamw.step, 28.0 * numel))
        if importlib.util.find_spec("apex") is not None:
            from apex.optimizers import FusedLAMB

            fused = FusedLAMB([parameter], lr=1e-9)
            self.rows.measure(f"{shape} apex FusedLAMB", lambda: self.row(fused.step, 40.0 * numel))


def measure(rows: Rows, device: torch.device, sizes: Sizes, turns: tuple[int, ...] = (OURS,)) -> None:
    """Fill the rows of a part."""
    ops = Ops(rows, device, sizes)
    for ops.turn in turns:
        ops.layer_norm()
        ops.bias_gelu()
        ops.lamb()
        for length in sizes.attention_lengths:
            ops.attention(length)
        for length in sizes.rotary_lengths:
            ops.rotary_attention(length)
        for length in sizes.disentangled_lengths:
            ops.disentangled_attention(length)
        ops.gated_gelu()
        ops.cross_entropy()
