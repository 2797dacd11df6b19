"""The seconds of an optimizer step, from datasheets: compute, reduction, passes, optimizer, loader.

    step = max(compute + communication - hidden + passes + optimizer, loader)

Compute is the step's FLOPs at a share of the peak, ``efficiency``, which is the one number that no datasheet has.
Collectives are rings: every rank sends each byte over NVLink, every node over its network cards, at ``LINE_RATE`` of
their speed, and each hop of the ring costs a latency. docs/before_a_run.md compares the model with published systems.

Rates that ``megabert doctor --prove`` has measured take the place of all of these (`rates_of_proof`).
"""

from dataclasses import dataclass
from typing import NamedTuple, get_args

from megabert.foundation.errors import ConfigError
from megabert.observability.flops import Gpu, gpu_of_device
from megabert.tooling.measurements.measured import CollectiveName, MeasuredRates

COLLECTIVES: tuple[CollectiveName, ...] = get_args(CollectiveName)

LINE_RATE = 0.75
"""Share of a link's datasheet speed that collectives reach. Assumed, not fitted."""
HOP_WITHIN_NODE_S, HOP_BETWEEN_NODES_S = 3.4e-6, 14e-6
"""Latency of one hop of a ring with the protocol Simple, from NCCL's own tuning table (src/graph/tuning.cc, hwLat)."""
MEMORY_RATE = 0.8
"""Share of the memory's datasheet speed that an optimizer reaches. Assumed, not fitted."""
PRODUCT_SHARE, FP8_SPEEDUP = 670 / 989, 1050 / 670
"""Share of the 16-bit peak that the layers' products reach in bf16, and how many times as fast they are assumed to be
in 8 bits. Both are of Hopper (benchmarks/predictions/cards.py), for every GPU; nobody has timed a step in fp8."""
OPTIMIZER_BYTES_PER_PARAMETER = 52
"""Bytes that a LAMB step reads and writes: gradient, weights, two moments and the update, in two passes, and the 16-bit
copy of the weights."""
BACKWARD_SHARE = 2 / 3
"""Share of the backward pass in a micro-step's compute: it has twice the FLOPs of the forward pass."""
PLAN_S_PER_INSTANCE = 0.07e-6
"""Seconds that the loader takes to plan one instance, and a rank's few reads. Every rank plans the whole global batch:
65,536 instances take 3.6 to 4.9 ms where each rank has few of them (docs/training.md)."""
LOADER_TOKENS_PER_S = 55e6
"""Tokens that the loader collects on one core. Every rank collects its own share (docs/training.md)."""


class Cluster(NamedTuple):
    """Nodes with the same number of the same GPU."""

    gpu: Gpu
    nodes: int
    gpus_per_node: int

    @property
    def world_size(self) -> int:
        """Number of ranks: one per GPU."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Traffic of a training system in a step, and its passes over each gradient on a rank, in bytes per parameter."""

    all_reduce_bytes: float = 0.0
    """Gradients summed on every rank."""
    reduce_scatter_bytes: float = 0.0
    """Gradients summed on the rank that holds their part of the optimizer."""
    all_gather_bytes: float = 0.0
    """Updated weights, once per step."""
    micro_step_gather_bytes: float = 0.0
    """Weights fetched in each micro-step (ZeRO-3: forward and backward)."""
    is_per_micro_step: bool = False
    """Whether gradients are sent in each micro-step (ZeRO-2 and ZeRO-3) instead of once per step."""
    is_overlapped: bool = False
    """Whether gradients are sent while the last micro-step's backward pass is running."""
    is_gather_overlapped: bool = False
    """Whether updated weights are sent while the first micro-step's forward pass is running."""
    exposed_share: float = 0.0
    """Share of the parameters whose gradients are known last and whose weights are needed first: the embeddings.
    Nothing is computed while they are sent."""
    buckets: int = 1
    """Collectives that gradients are cut into, and weights as well; each has the latency of its ring."""
    is_optimizer_sharded: bool = False
    """Whether each rank updates only its share of the parameters (ZeRO)."""
    pass_bytes: float = 0.0
    """Bytes of whole gradients that every rank reads and writes once a step: copied, scaled, checked, clipped."""
    micro_step_pass_bytes: float = 0.0
    """The same in each micro-step: gradients that are added up."""


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """The work of one step, all ranks together."""

    parameters: int
    flops: float
    micro_steps: int
    """Micro-steps of each rank."""
    instances: int = 0
    """Instances that the loader plans; 0 leaves the loader out."""
    tokens: int = 0
    """Tokens that the loader collects; 0 leaves the loader out."""


class StepTime(NamedTuple):
    """Seconds of one optimizer step."""

    compute_s: float
    communication_s: float
    hidden_s: float
    """Seconds of the communication that run during the backward and the forward pass."""
    passes_s: float
    """Seconds of what every rank does to the whole gradient, which no number of GPUs shortens."""
    optimizer_s: float
    loader_s: float

    @property
    def total_s(self) -> float:
        """Seconds of the step. The loader runs in a thread of its own, so it counts only if it is slower."""
        busy_s = self.compute_s + self.communication_s - self.hidden_s + self.passes_s + self.optimizer_s
        return max(busy_s, self.loader_s)


class Rates(NamedTuple):
    """The speeds of a cluster that the seconds of a step follow from."""

    flops_per_s: float
    """FLOPs of the model that one rank computes per second, without collectives and optimizer."""
    rings: dict[CollectiveName, tuple[float, float]]
    """Seconds per message and seconds per byte of each collective."""
    pass_s_per_byte: float
    """Seconds per byte of passes over whole gradients; 0 if they are part of the compute."""
    optimizer_s_per_parameter: float
    loader_tokens_per_s: float = LOADER_TOKENS_PER_S
    """Tokens that a rank's loader collects per second."""
    plan_s_per_instance: float = PLAN_S_PER_INSTANCE
    """Seconds of planning an instance; 0 if they are part of the loader's rate."""


def datasheet_rates(cluster: Cluster, *, efficiency: float, precision: str) -> Rates:
    """Return the rates of a cluster by its datasheets.

    Args:
        cluster: GPUs and their links.
        efficiency: Share of the GPUs' peak while they compute, without collectives and optimizer.
        precision: ``bf16`` or ``fp16``, which names the peak.
    """
    gpu = cluster.gpu
    memory_rate = gpu.memory_gb_s * 1e9 * MEMORY_RATE
    message_s, byte_s = _ring(cluster)
    return Rates(
        flops_per_s=gpu.peak_tflops[precision] * 1e12 * efficiency,
        # An all-reduce is a reduce-scatter and an all-gather.
        rings={
            "all_reduce": (2 * message_s, 2 * byte_s),
            "reduce_scatter": (message_s, byte_s),
            "all_gather": (message_s, byte_s),
        },
        pass_s_per_byte=1 / memory_rate,
        optimizer_s_per_parameter=OPTIMIZER_BYTES_PER_PARAMETER / memory_rate,
    )


def fp8_rates(rates: Rates, gpu: Gpu, *, flops: float, fp8_flops: float, cast_bytes: float) -> Rates:
    """Return the rates with a part of the FLOPs in 8 bits: products take less time, and casts take some.

    Args:
        rates: Rates in 16 bits.
        gpu: A GPU that has fp8.
        flops: FLOPs of the model.
        fp8_flops: FLOPs in 8 bits among them (`fp8_work`).
        cast_bytes: Bytes that casts read and write for them.
    """
    in_16_bits_s = fp8_flops / (gpu.peak_tflops["fp8"] * 1e12 * PRODUCT_SHARE)
    saved_s = in_16_bits_s * (1 - 1 / FP8_SPEEDUP) - cast_bytes * rates.pass_s_per_byte
    return rates._replace(flops_per_s=flops / (flops / rates.flops_per_s - saved_s))


def measured_cluster(measured: MeasuredRates, *, nodes: int | None = None, gpus_per_node: int | None = None) -> Cluster:
    """Return the cluster that was measured, or a larger or smaller one of the same machines.

    A device that has no datasheet here, such as a CPU, gets the measured rate of products for its peak.
    """
    gpu = gpu_of_device(measured.device)
    if gpu is None or measured.precision not in gpu.precisions:
        gpu = Gpu(
            name=measured.device,
            words=measured.device,
            precisions=(measured.precision,),
            tflops=measured.product_tflops,
            memory_gib=measured.memory_gib,
            memory_gb_s=measured.copy_gb_s,
            link_gb_s=0.0,
            network_gb_s=0.0,
            gpus_per_node=measured.ranks_per_node,
        )
    return Cluster(gpu=gpu, nodes=nodes or measured.nodes, gpus_per_node=gpus_per_node or measured.ranks_per_node)


def rates_of_proof(
    measured: MeasuredRates, cluster: Cluster, *, flops_per_token: float, layers: int, length: int
) -> Rates:
    """Return the rates of a cluster as they were measured.

    Args:
        measured: The measurement. It has one micro-step's seconds, gradients added up included.
        cluster: Nodes and ranks.
        flops_per_token: FLOPs of the model per token of the phase.
        layers: Number of encoder layers.
        length: ``max_seq_length`` of the phase.

    Raises:
        ConfigError: The length, so few layers, or collectives of such a cluster were not measured.
    """
    phase = measured.phase(length)
    micro_step_s = phase.micro_step_s(layers)
    if micro_step_s <= 0:
        raise ConfigError(
            f"--measured: {layers} layers of length {length} come to {micro_step_s:g} s per micro-step: "
            "so few were not measured, or the file is damaged. Run megabert doctor --prove again, with this recipe."
        )
    has_loader = measured.loader_tokens_per_s is not None
    return Rates(
        flops_per_s=flops_per_token * phase.tokens / micro_step_s,
        rings={name: measured.collective(name, cluster.nodes, cluster.gpus_per_node) for name in COLLECTIVES},
        pass_s_per_byte=0.0,
        optimizer_s_per_parameter=measured.optimizer_s_per_parameter,
        loader_tokens_per_s=measured.loader_tokens_per_s or LOADER_TOKENS_PER_S,
        plan_s_per_instance=0.0 if has_loader else PLAN_S_PER_INSTANCE,
    )


def step_time(work: StepWork, cluster: Cluster, communication: Communication, rates: Rates) -> StepTime:
    """Return the seconds of a step.

    Args:
        work: The work of the step.
        cluster: GPUs and their links.
        communication: Traffic of the training system.
        rates: Speeds of the cluster.
    """
    ranks = cluster.world_size
    compute_s = work.flops / ranks / rates.flops_per_s

    def seconds(name: CollectiveName, bytes_per_parameter: float, messages: int = 1) -> float:
        message_s, byte_s = rates.rings[name]
        return bytes_per_parameter and messages * message_s + work.parameters * bytes_per_parameter * byte_s

    # ZeRO-2 and ZeRO-3 reduce after each backward pass, the others once.
    rounds = work.micro_steps if communication.is_per_micro_step else 1
    buckets = communication.buckets
    gradients_s = rounds * (
        seconds("all_reduce", communication.all_reduce_bytes, buckets)
        + seconds("reduce_scatter", communication.reduce_scatter_bytes, buckets)
    )
    weights_s = seconds("all_gather", communication.all_gather_bytes, buckets)
    fetches_s = work.micro_steps * seconds("all_gather", communication.micro_step_gather_bytes)
    # Overlapped, gradients are sent while the backward pass works on the layers below, and weights while the next
    # forward pass does.
    micro_step_s = compute_s / work.micro_steps
    hideable = 1 - communication.exposed_share
    hidden_s = min(hideable * gradients_s, rounds * micro_step_s * BACKWARD_SHARE) * communication.is_overlapped
    hidden_s += min(hideable * weights_s, micro_step_s * (1 - BACKWARD_SHARE)) * communication.is_gather_overlapped
    shards = ranks if communication.is_optimizer_sharded else 1
    passes = communication.pass_bytes + work.micro_steps * communication.micro_step_pass_bytes
    return StepTime(
        compute_s=compute_s,
        communication_s=gradients_s + weights_s + fetches_s,
        hidden_s=hidden_s,
        passes_s=work.parameters * passes * rates.pass_s_per_byte,
        optimizer_s=work.parameters * rates.optimizer_s_per_parameter / shards,
        loader_s=work.instances * rates.plan_s_per_instance + work.tokens / ranks / rates.loader_tokens_per_s,
    )


def _ring(cluster: Cluster) -> tuple[float, float]:
    """Return the seconds per message and per byte of a reduce-scatter or an all-gather over a ring."""
    if cluster.world_size == 1:
        return 0.0, 0.0
    gpus, nodes = cluster.gpus_per_node, cluster.nodes
    within_s = (gpus - 1) / gpus / (cluster.gpu.link_gb_s * 1e9 * LINE_RATE)
    between_s = (nodes - 1) / nodes / (cluster.gpu.network_gb_s * gpus * 1e9 * LINE_RATE)
    # Small messages are bound by latency: a ring passes through every GPU.
    message_s = nodes * (gpus - 1) * HOP_WITHIN_NODE_S + (nodes - 1) * HOP_BETWEEN_NODES_S
    return message_s, within_s + between_s
