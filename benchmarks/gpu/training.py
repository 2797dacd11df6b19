"""Part `training`: a step of BERT-Large at 128 and 512 and of ModernBERT: throughput, MFU, memory, time by part.

One GPU and no engine around it: bfloat16 weights, float32 masters in flat shards as under ZeRO, clipping, LAMB, batches
copied from pinned memory.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.bars import FP8
from benchmarks.gpu.batches import Batch, batches, cycle, random_batch
from benchmarks.gpu.clock import synchronize, timed_window
from benchmarks.gpu.rows import Row, Rows, SpoiltProcess
from benchmarks.gpu.sizes import TINY, Sizes
from megabert.models.bert import PretrainingModel
from megabert.models.build import build_model
from megabert.observability.flops import local_pairs, peak_flops, training_flops
from megabert.ops.fp8 import reset_casts
from megabert.ops.lamb import Coefficients, SlotFragment, lamb_passes
from megabert.ops.matmul_precision import set_matmul_precision
from megabert.optim.base import no_decay
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig


class Shard:
    """Parameters that share a weight decay, in flat tensors."""

    def __init__(self, parameters: list[nn.Parameter], decay: float, backend: str) -> None:
        device, total = parameters[0].device, sum(parameter.numel() for parameter in parameters)
        self.master = torch.cat([parameter.detach().float().flatten() for parameter in parameters])
        self.weights = self.master.to(parameters[0].dtype)
        self.grad16 = torch.zeros_like(self.weights)
        self.gradient, self.exp_avg, self.exp_avg_sq = (torch.zeros(total, device=device) for _ in range(3))
        self.coefficients = Coefficients(beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=decay)
        self.fragments: list[SlotFragment] = []
        self.squares = torch.zeros(2, len(parameters), dtype=torch.float64, device=device)
        self.passes = lamb_passes(backend, device.type)
        offset = 0
        for slot, parameter in enumerate(parameters):
            span = slice(offset, offset + parameter.numel())
            parameter.data = self.weights[span].view_as(parameter)
            parameter.grad = self.grad16[span].view_as(parameter)
            self.fragments.append(SlotFragment(offset, parameter.numel(), slot))
            offset = span.stop

    def update(self, factor: Tensor, learning_rate: float) -> None:
        """Clip by ``factor`` and take one LAMB step; nothing here waits for the device."""
        self.squares.zero_()
        self.passes.compute_update(
            self.master,
            self.gradient,
            self.exp_avg,
            self.exp_avg_sq,
            coefficients=replace(self.coefficients, gradient_scale=factor.double()),
            fragments=self.fragments,
            squares=self.squares,
        )
        weights, update = self.squares.sqrt()
        # masked_fill: torch.where would copy the number from the host, which a graph refuses
        ratios = (weights / update).masked_fill((weights == 0) | (update == 0), 1.0)
        self.passes.apply_update(
            self.master,
            self.gradient,
            fragments=self.fragments,
            scales=-learning_rate * ratios,
            rounded=self.weights,
        )


@torch.no_grad()
def random_model(
    config: ModelConfig, ops: OpsConfig, device: torch.device, *, in_fp8: bool = False
) -> PretrainingModel:
    """Return a model with BERT's deviation of weights, drawn on its own device; the same one each time.

    335 million random numbers take a CPU seconds, and each row has a model of its own.
    """
    torch.manual_seed(0)
    with device:
        model = build_model(config, ops=ops, in_fp8=in_fp8)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=config.initializer_range)
    return model


class MegabertStep:
    """A whole optimizer step on one batch, eager or as one CUDA graph."""

    def __init__(
        self,
        config: ModelConfig,
        batch: Batch,
        *,
        backend: str,
        device: torch.device,
        dtype: torch.dtype,
        in_fp8: bool = False,
    ) -> None:
        set_matmul_precision()
        options: dict[str, Any] = dict.fromkeys(("layer_norm", "attention", "bias_gelu", "cross_entropy"), backend)
        self.model = random_model(config, OpsConfig(**options), device, in_fp8=in_fp8).to(dtype)
        named = list(self.model.named_parameters())
        self.shards = [
            Shard([parameter for name, parameter in named if no_decay(name) == is_free], decay, backend)
            for is_free, decay in ((False, 0.01), (True, 0.0))
        ]
        self.batch = batch.to(device)
        self.learning_rate = 1e-3
        self.loss = torch.zeros((), device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def eager(self) -> None:
        """Run forward, backward, clipping and LAMB on the batch in place."""
        for shard in self.shards:
            shard.grad16.zero_()
        for parameter in self.model.parameters():
            reset_casts(parameter)
        output = self.model(self.batch)
        loss = output.mlm_loss_sum / self.batch.masked_ids_M.numel()
        loss = loss + output.nsp_loss_sum / self.batch.next_sentence_label_B.numel()
        loss.backward()
        for shard in self.shards:
            shard.gradient.copy_(shard.grad16)
        norm = torch.stack([shard.gradient.norm() for shard in self.shards]).norm()
        factor = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        for shard in self.shards:
            shard.update(factor, self.learning_rate)
        self.loss.copy_(loss.detach())

    def capture(self) -> None:
        """Record the step as one CUDA graph; kernels are compiled before."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.eager()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.graph):
                self.eager()
        except RuntimeError as error:
            # torch 2.11 never frees the memory of a capture that failed, and takes it to be under way for ever. What
            # broke it is the context of the error that ended it.
            raise SpoiltProcess(str(error.__context__ or error)) from error

    def __call__(self, batch: Batch) -> None:
        """Train on a batch in pinned memory."""
        self.batch.copy_(batch)
        if self.graph is None:
            self.eager()
        else:
            self.graph.replay()


def model_config(sizes: Sizes, **changes: Any) -> ModelConfig:
    """Return BERT-Large, or the tiny one."""
    fields: dict[str, Any] = {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "intermediate_size": sizes.intermediate,
    }
    return ModelConfig(**(fields | changes))


def throughput(
    make: Callable[[], Callable[[Batch], None]], config: ModelConfig, sizes: Sizes, length: int, *, steps: int
) -> Row:
    """Time ``steps`` steps after warming up, copies of the batches included."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepared = batches(sizes, length, int(config.vocab_size))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step, source = make(), cycle(prepared)
    for _ in range(sizes.warmup):
        step(next(source))
    with timed_window(device):
        started = time.perf_counter()
        for _ in range(steps):
            step(next(source))
        synchronize(device)
        seconds = (time.perf_counter() - started) / steps
    tokens, count = prepared[0].input_ids_T.numel(), prepared[0].next_sentence_label_B.numel()
    flops = training_flops(
        config,
        tokens=tokens,
        squared_lengths=count * length**2,
        masked=prepared[0].masked_ids_M.numel(),
        local_pairs=local_pairs(config, [length] * count),
    )
    peak = peak_flops(torch.cuda.get_device_name(), "bf16") if device.type == "cuda" else None
    return {
        "ms_per_step": round(1e3 * seconds, 3),
        "tokens_per_s": round(tokens / seconds),
        "sequences_per_s": round(count / seconds, 1),
        "mfu_pct": round(100 * flops / seconds / peak, 2) if peak else None,
        "max_allocated_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device.type == "cuda" else None,
        "steps": steps,
        "tokens_per_step": tokens,
    }


PARTS = {
    "attention": ("attention_",),
    "layer_norm": ("layer_norm_", "column_sums"),
    "bias_gelu": ("bias_gelu_", "gated_gelu_"),
    "cross_entropy": ("cross_entropy_",),
    "casts": ("row_cast",),
    "lamb": ("lamb_",),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "aten::mm", "aten::addmm", "aten::bmm"),
    "copies and fills": ("memcpy", "memset", "copy", "fill", "zero"),
}


def time_by_part(step: MegabertStep, batch: Batch, device: torch.device, *, before: int) -> Row:
    """Return milliseconds of kernels by part, per eager step under the profiler, and the kernels that take most.

    Args:
        step: What is profiled.
        batch: In pinned memory.
        device: The device that the step is on.
        before: Steps that bring a card to the clock at which it trains: an idle card starts faster.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities):  # the profiler's first start takes seconds
        step(batch)
    for _ in range(before):
        step(batch)
    synchronize(device)
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(PROFILED):
            step(batch)
        synchronize(device)
    times, kernels = dict.fromkeys([*PARTS, "others"], 0.0), defaultdict[str, float](float)
    for event in profile.key_averages():
        spent = event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
        spent /= 1e3 * PROFILED
        name = event.key.lower()
        part = next((part for part, marks in PARTS.items() if any(mark in name for mark in marks)), "others")
        times[part] += spent
        kernels[event.key[:LETTERS]] += spent
    longest = sorted(kernels.items(), key=lambda item: -item[1])[:KERNELS]
    row: Row = {f"{part} ms": round(value, 3) for part, value in times.items()}
    return row | {"kernels": {name: round(value, 3) for name, value in longest}}


KERNELS, LETTERS = 16, 160
"""Kernels whose own times go into the row, and letters of their names; those of equal letters are added up."""
STEPS_BEFORE, PROFILED = 30, 3
"""Steps before the profiled ones, about 4 s, and steps that are profiled."""
MODERN_VOCABULARY = 50_368
GRAPH, EAGER = "CUDA graph", "eager"


def megabert_step(
    config: ModelConfig, sizes: Sizes, length: int, device: torch.device, *, kind: str, in_fp8: bool
) -> MegabertStep:
    """Return a step on sequences of a length, captured if its kind is a graph."""
    dtype, backend = (torch.bfloat16, "triton") if device.type == "cuda" else (torch.float32, "auto")
    example = random_batch(sizes.tokens, length, int(config.vocab_size), 0)
    step = MegabertStep(config, example, backend=backend, device=device, dtype=dtype, in_fp8=in_fp8)
    if kind == GRAPH:
        step.capture()
    return step


def modern_config(sizes: Sizes) -> ModelConfig:
    """Return ModernBERT-large, or a tiny one."""
    if sizes is not TINY:
        return ModelConfig(family="modernbert", preset="large", vocab_size=MODERN_VOCABULARY)
    return model_config(sizes, family="modernbert", num_hidden_layers=4)


def measure(rows: Rows, device: torch.device, sizes: Sizes, *, in_fp8: bool = False) -> None:
    """Fill the rows of the part: BERT-Large at each length and where its time goes, then ModernBERT."""
    kind, precision = GRAPH if device.type == "cuda" else EAGER, f"{FP8} " if in_fp8 else ""

    def throughput_at(name: str, config: ModelConfig, length: int, steps: int) -> None:
        make = partial(megabert_step, config, sizes, length, device, kind=kind, in_fp8=in_fp8)
        row = partial(throughput, make, config, sizes, length, steps=steps)
        rows.measure(f"length {length} {name} {precision}{kind}", row)

    def by_part(length: int) -> Row:
        step = megabert_step(model_config(sizes), sizes, length, device, kind=EAGER, in_fp8=in_fp8)
        batch = random_batch(sizes.tokens, length, sizes.vocabulary, 0).pinned()
        return time_by_part(step, batch, device, before=min(STEPS_BEFORE, sizes.steps))

    for length in sizes.lengths:
        throughput_at("megabert", model_config(sizes), length, sizes.steps)
        rows.measure(f"length {length} megabert {precision}time by part", partial(by_part, length))
    throughput_at("ModernBERT-large", modern_config(sizes), sizes.rotary_lengths[0], max(2, sizes.steps // 3))
