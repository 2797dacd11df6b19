"""Rates of this rank's machine in the shapes of a run: copies, matrix products, a micro-step, an update, the loader."""

# T packed tokens, K width of a product's input, C width of its output

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from megabert.data.batch import MicroBatch, probe_batch
from megabert.data.mixture import open_training_mixture
from megabert.data.packing import RankShare, shape_for
from megabert.data.step_packer import StepPacker
from megabert.distributed.process_group import World
from megabert.engine.engine import DTYPES, Engine, build_engine
from megabert.models.bert import terms_of
from megabert.models.build import build_model, initialize
from megabert.models.matrices import layer_matrices
from megabert.observability.flops import training_flops
from megabert.ops.fp8 import row_product
from megabert.ops.sums_of_squares import sums_of_squares
from megabert.optim import Fragment, StepSettings, build_optimizer
from megabert.settings.config.deepspeed import derive_deepspeed
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import RunConfig
from megabert.tooling.measurements.measured import PhaseSpeed
from megabert.training.first_budget import first_budget
from megabert.training.step import counts_of, weighted_loss

COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}
UPDATED_PARAMETERS = {"cuda": 2**26, "cpu": 2**22}
MOST_TOKENS = {"cuda": 32_768, "cpu": 8_192}
"""Tokens of a measured micro-step: on a GPU more of them take as many seconds each."""
MICRO_STEP_S = {"cuda": 1.0, "cpu": 2.0}
"""Seconds that a measured micro-step may take; it has fewer tokens on a slower device."""
LIMIT_S = 0.5
"""Seconds of one measurement."""
LAYERS = 4
"""Layers of the deeper one of the two models whose difference is the time of a layer."""


def median_s(function: Callable[[], object], *, share: float = 1.0) -> float:
    """Return the median seconds of a call, the device's work included, after this share of ``LIMIT_S`` of calls."""
    return timer_of(function).blocked_autorange(min_run_time=share * LIMIT_S).median


def timer_of(function: Callable[[], object]) -> Timer:
    """Return torch's timer of a call, which waits for the GPU."""
    return Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())


def copy_gb_s(device: torch.device) -> float:
    """Return the bytes that a large copy within the device's memory reads and writes per second, in GB/s."""
    source = torch.ones(COPY_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_s(lambda: target.copy_(source)) / 1e9


def host_to_device_gb_s(device: torch.device) -> float | None:
    """Return the rate of copies from page-locked memory to a GPU, in GB/s; None on a CPU."""
    if device.type == "cpu":
        return None
    source = torch.ones(COPY_BYTES["cpu"] // 4, pin_memory=True)
    target = torch.empty(source.shape, device=device)
    return source.nbytes / median_s(lambda: target.copy_(source, non_blocking=True)) / 1e9


def product_tflops(config: RunConfig, tokens: int, device: torch.device) -> float:
    """Return the rate of a layer's matrix products: forward, the gradient of the input and of the weight."""
    dtype, seconds, flops = DTYPES[config.precision], 0.0, 0
    in_layers = fp8_matmul if config.precision == "fp8" else torch.matmul  # gradients of weights stay in 16 bits
    hidden, inner = config.model.hidden_size, config.model.intermediate_size
    gates = 2 if config.model.traits.is_pre_norm else 1  # GeGLU has two matrices of the inner width
    for width, columns in ((hidden, 3 * hidden), (hidden, hidden), (hidden, gates * inner), (inner, hidden)):
        x_TK = torch.rand(tokens, width, device=device, dtype=dtype)
        weight_KC = torch.rand(width, columns, device=device, dtype=dtype)
        grad_TC = torch.rand(tokens, columns, device=device, dtype=dtype)
        for multiply, left, right in (
            (in_layers, x_TK, weight_KC),
            (in_layers, grad_TC, weight_KC.t()),
            (torch.matmul, x_TK.t(), grad_TC),
        ):
            seconds += median_s(partial(multiply, left, right), share=0.4)
            flops += 2 * tokens * width * columns
    return flops / seconds / 1e12


def fp8_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Multiply in 8 bits, casts included."""
    return row_product(left, right.t())


def random_batch(model: ModelConfig, *, tokens: int, length: int, seed: int, masked_share: float | None) -> MicroBatch:
    """Return a full micro-batch of random pieces, keyed by the seed."""
    assert isinstance(model.vocab_size, int)
    batch = probe_batch(tokens=tokens, length=length, masked_share=masked_share)
    generator = torch.Generator().manual_seed(seed)
    count, masked = len(batch.input_ids_T), len(batch.masked_ids_M)
    seeds_B = torch.randint(0, 2**31 - 1, batch.instance_seeds_B.shape, generator=generator, dtype=torch.int32)
    return replace(
        batch,
        segment_ids_T=(batch.position_ids_T >= length // 2).long() * (model.type_vocab_size > 1),
        input_ids_T=torch.randint(5, model.vocab_size, (count,), generator=generator),
        masked_ids_M=torch.randint(5, model.vocab_size, (masked,), generator=generator),
        instance_seeds_B=seeds_B,
    )


def small_engine(config: RunConfig, model: ModelConfig, ds_config: dict[str, object], world: World) -> Engine:
    """Return an engine around a fresh model of some sizes, with the run's optimizer and ops."""
    module = build_model(
        model,
        in_fp8=config.precision == "fp8",
        ops=config.ops,
        activation_checkpointing=config.activation_checkpointing,
        z_loss=config.z_loss,
    )
    initialize(module, config.seed)
    matrices = layer_matrices(module, per_head=config.optimizer.muon_heads)
    optimizer = build_optimizer(
        module.named_parameters(), config.optimizer, lamb_backend=config.ops.lamb, matrices=matrices
    )
    return build_engine(module, optimizer, ds_config, world)


def measure_phase(config: RunConfig, phase: PhaseConfig, world: World, product_rate: float) -> PhaseSpeed:
    """Time micro-steps of two depths in turn: the difference is the time of layers, the rest embeddings and heads.

    Nothing is sent: stage 1 sends in the last micro-step of a step alone.
    """
    few, many = _depths(config.model)
    length, device = phase.max_seq_length, world.device
    tokens = _affordable_tokens(config, phase, world, many, product_rate)
    ds_config = derive_deepspeed("zero1", precision=config.precision, max_grad_norm=1.0)
    masked = phase.mean_masked
    batch = random_batch(config.model, tokens=tokens, length=length, seed=1, masked_share=masked).to(device)
    counts, timers = counts_of(batch), {}
    for layers in (few, many):
        engine = small_engine(config, _with_layers(config.model, layers), ds_config, world)
        terms = terms_of(engine.module)

        def micro_step(engine: Engine = engine, terms: object = terms) -> None:
            loss = weighted_loss(engine.forward(batch), terms, counts=counts, world_size=world.size)  # type: ignore[arg-type]
            engine.backward(loss)

        timers[layers] = timer_of(micro_step)
        timers[layers].timeit(1)  # compiles and makes room
    # In turn, so that a machine that is busy for a while does not slow down one of them only.
    times: dict[int, list[float]] = {layers: [] for layers in timers}
    deadline = time.perf_counter() + 8 * MICRO_STEP_S[device.type]
    while len(times[many]) < 3 or (time.perf_counter() < deadline and len(times[many]) < 40):
        for layers, timer in timers.items():
            times[layers].append(timer.timeit(1).median)
    low, high = (statistics.median(times[layers]) for layers in (few, many))
    layer_s = max(0.0, high - low) / max(1, many - few) if many > few else low / many
    return PhaseSpeed(max_seq_length=length, tokens=tokens, layer_s=layer_s, ends_s=high - many * layer_s)


def _depths(model: ModelConfig) -> tuple[int, int]:
    """Return two numbers of layers that differ by whole periods of a model whose layers are not all alike."""
    few = model.num_hidden_groups or 1
    period = model.global_attn_every_n_layers if model.traits.is_pre_norm else few
    many = few + period * max(1, (LAYERS - 1) // period)
    return min(few, model.num_hidden_layers), min(many, model.num_hidden_layers)


def _with_layers(model: ModelConfig, layers: int) -> ModelConfig:
    return replace(model, preset=None, num_hidden_layers=layers)


def _affordable_tokens(config: RunConfig, phase: PhaseConfig, world: World, layers: int, product_rate: float) -> int:
    """Return the tokens of the run's micro-steps, or fewer if one would take too long; the same on all ranks."""
    length, kind = phase.max_seq_length, world.device.type
    share = -(-phase.global_batch_size * length // world.size)
    budget = config.micro_batch_tokens
    budget = first_budget(kind, share=share, floor=length) if budget == "auto" else budget
    sizes = {"tokens": length, "squared_lengths": length**2, "masked": length // 8, "local_pairs": 0}
    instance_flops = training_flops(_with_layers(config.model, layers), **sizes)
    affordable = MICRO_STEP_S[kind] * product_rate * 1e12 / 3 / instance_flops
    instances = min(budget // length, MOST_TOKENS[kind] // length, math.floor(affordable), share // length)
    return int(min(world.gather(max(1, instances)))) * length


def optimizer_s_per_parameter(config: RunConfig, device: torch.device) -> float:
    """Return the seconds per parameter of an update by the run's optimizer, and of the norm of the gradient."""
    # As Muon sees it, square matrices of the model's width, one below the other.
    width = config.model.hidden_size
    squares = max(1, UPDATED_PARAMETERS[device.type] // width**2)
    flat = torch.nn.Parameter(torch.rand(squares * width, width, device=device))
    flat.grad = torch.rand_like(flat)
    optimizer = build_optimizer(
        [("weight", flat)], config.optimizer, lamb_backend=config.ops.lamb, matrices={"weight": squares}
    )
    optimizer.attach([Fragment(flat, 0, "weight", 0, flat.numel())], {"weight": flat.shape}, None)
    settings = StepSettings(lr=1e-3, gradient_scale=torch.ones((), dtype=torch.float64, device=device))

    @torch.no_grad()
    def update() -> None:
        assert flat.grad is not None
        sums_of_squares([flat.grad.view(-1)], device)
        optimizer.step(settings)

    return median_s(update) / flat.numel()


def loader_tokens_per_s(config: RunConfig, world: World) -> float | None:
    """Return the tokens that this rank's loader plans, reads and packs per second; None without shards."""
    phase, is_gpu = config.phases[0], world.device.type == "cuda"
    shards = open_training_mixture(config, 0)
    if shards is None:
        return None
    totals, batch, budget = shards.statistics_in(phase), phase.global_batch_size, config.micro_batch_tokens
    if budget == "auto":
        mine = batch * totals.tokens // (totals.rows * world.size)
        budget = first_budget(world.device.type, share=mine, floor=totals.max_seq_length)
    shape = shape_for(totals, global_batch_size=batch, world_size=world.size, micro_batch_tokens=budget)
    share = RankShare(shape=shape, rank=world.rank, world_size=world.size, pad=is_gpu, pin=is_gpu)
    masking = shards.first.masking_in(phase)
    packer = StepPacker(shards, seed=0, global_batch_size=batch, share=share, masking=masking)
    positions = packer.pack({}, 0).positions_after  # compiles loops, opens files
    tokens, number, started = 0, 0, time.perf_counter()
    while number < 3 or (time.perf_counter() - started < LIMIT_S and number < 100):
        number += 1
        step = packer.pack(positions, number)
        tokens += sum(micro_batch.num_tokens for micro_batch in step.micro_batches)
        positions = step.positions_after
    return max(1, tokens) / (time.perf_counter() - started)


def device_memory_gib(device: torch.device) -> float:
    """Return the memory of the GPU, or of the host."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / 2**30
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
