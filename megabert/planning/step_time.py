"""The seconds of an optimizer step, from datasheets: compute, reduction, passes, optimizer, loader.

    step = max(compute + communication - hidden + passes + optimizer, loader)

Compute is the step's FLOPs at a share of the peak, ``efficiency``, which is the one number that no datasheet has.
Collectives are rings: every rank sends each byte over NVLink, every node over its network cards, at ``LINE_RATE`` of
their speed, and each hop of the ring costs a latency. docs/scaling.md compares the model with published systems.
"""

from dataclasses import dataclass

from megabert.observability.gpus import Gpu

LINE_RATE = 0.75
"""Share of a link's datasheet speed that collectives reach. Assumed, not fitted."""
HOP_WITHIN_NODE_S, HOP_BETWEEN_NODES_S = 3.4e-6, 14e-6
"""Latency of one hop of a ring with the protocol Simple, from NCCL's own tuning table (src/graph/tuning.cc, hwLat)."""
MEMORY_RATE = 0.8
"""Share of the memory's datasheet speed that an optimizer reaches. Assumed, not fitted."""
OPTIMIZER_BYTES_PER_PARAMETER = 52
"""Bytes that a LAMB step reads and writes: gradient, weights, two moments and the update, in two passes, and the 16-bit
copy of the weights."""
BACKWARD_SHARE = 2 / 3
"""Share of the backward pass in a micro-step's compute: it has twice the FLOPs of the forward pass."""
PLAN_S_PER_INSTANCE = 0.07e-6
"""Seconds that the loader takes to plan one instance, and a rank's few reads. Every rank plans the whole global batch:
65,536 instances take 3.6 to 4.9 ms where each rank has few of them (docs/loader.md)."""
LOADER_TOKENS_PER_S = 55e6
"""Tokens that the loader collects on one core. Every rank collects its own share (docs/loader.md)."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
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


@dataclass(frozen=True, kw_only=True)
class StepTime:
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


def step_time(
    work: StepWork, cluster: Cluster, communication: Communication, *, efficiency: float, precision: str
) -> StepTime:
    """Return the seconds of a step.

    Args:
        work: The work of the step.
        cluster: GPUs and their links.
        communication: Traffic of the training system.
        efficiency: Share of the GPUs' peak while they compute, without collectives and optimizer.
        precision: ``bf16`` or ``fp16``, which names the peak.
    """
    ranks, gpu = cluster.world_size, cluster.gpu
    compute_s = work.flops / ranks / (gpu.peak_tflops[precision] * 1e12 * efficiency)
    # ZeRO-2 and ZeRO-3 reduce after each backward pass, the others once.
    rounds = work.micro_steps if communication.is_per_micro_step else 1
    buckets = communication.buckets
    gradients_s = rounds * (
        2 * _ring_s(work.parameters * communication.all_reduce_bytes, cluster, buckets)
        + _ring_s(work.parameters * communication.reduce_scatter_bytes, cluster, buckets)
    )
    weights_s = _ring_s(work.parameters * communication.all_gather_bytes, cluster, buckets)
    fetches_s = work.micro_steps * _ring_s(work.parameters * communication.micro_step_gather_bytes, cluster)
    # Overlapped, gradients are sent while the backward pass works on the layers below, and weights while the next
    # forward pass does.
    micro_step_s = compute_s / work.micro_steps
    hideable = 1 - communication.exposed_share
    hidden_s = min(hideable * gradients_s, rounds * micro_step_s * BACKWARD_SHARE) * communication.is_overlapped
    hidden_s += min(hideable * weights_s, micro_step_s * (1 - BACKWARD_SHARE)) * communication.is_gather_overlapped
    shards = ranks if communication.is_optimizer_sharded else 1
    memory_rate = gpu.memory_gb_s * 1e9 * MEMORY_RATE
    passes = communication.pass_bytes + work.micro_steps * communication.micro_step_pass_bytes
    return StepTime(
        compute_s=compute_s,
        communication_s=gradients_s + weights_s + fetches_s,
        hidden_s=hidden_s,
        passes_s=work.parameters * passes / memory_rate,
        optimizer_s=work.parameters * OPTIMIZER_BYTES_PER_PARAMETER / shards / memory_rate,
        loader_s=work.instances * PLAN_S_PER_INSTANCE + work.tokens / ranks / LOADER_TOKENS_PER_S,
    )


def _ring_s(size_bytes: float, cluster: Cluster, messages: int = 1) -> float:
    """Return the seconds of a reduce-scatter or an all-gather over a ring; an all-reduce is one of each."""
    if size_bytes == 0 or cluster.world_size == 1:
        return 0.0
    gpus, nodes = cluster.gpus_per_node, cluster.nodes
    within_s = size_bytes * (gpus - 1) / gpus / (cluster.gpu.link_gb_s * 1e9 * LINE_RATE)
    between_s = size_bytes * (nodes - 1) / nodes / (cluster.gpu.network_gb_s * gpus * 1e9 * LINE_RATE)
    # Small messages are bound by latency: a ring passes through every GPU.
    hops_s = nodes * (gpus - 1) * HOP_WITHIN_NODE_S + (nodes - 1) * HOP_BETWEEN_NODES_S
    return within_s + between_s + messages * hops_s
