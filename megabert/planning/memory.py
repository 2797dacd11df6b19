"""A GPU's memory in training, counted from what the code keeps; a GPU has not confirmed it yet."""

from dataclasses import dataclass

from megabert.checkpoints.format import KINDS
from megabert.config.model import ModelConfig
from megabert.config.run import RunConfig
from megabert.observability.gpus import Gpu

GIB = 2**30
MEMORY_SHARE = 0.95
"""Of a GPU's memory that is planned for."""
OVERHEAD_GIB = 2.5
"""CUDA context, NCCL's buffers, the allocator's gaps. Assumed."""
BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed flattens gradients in pieces of at most this many elements to reduce them."""
LARGEST_BUDGET, SMALLEST_BUDGET = 131_072, 2_048


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one GPU at the fullest moment of a step."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    """Of the reduction, which begins when activations are gone."""

    @property
    def tensors_gib(self) -> float:
        """What torch holds."""
        states = self.weights + self.gradients + self.optimizer
        return (states + max(self.activations, self.buffers)) / GIB

    @property
    def total_gib(self) -> float:
        """Of a GPU, with what the driver and the allocator take."""
        return self.tensors_gib + OVERHEAD_GIB


def estimate_memory(
    model: ModelConfig,
    *,
    parameters: int,
    zero_stage: int,
    world_size: int,
    precision: str,
    micro_batch_tokens: int,
    masked_share: float = 0.16,
    recompute: bool = False,
) -> Memory:
    """Return the memory of one GPU.

    Args:
        model: Sizes; ``vocab_size`` is a number.
        parameters: All of them.
        zero_stage: 0 to 3.
        world_size: Ranks.
        precision: fp32, bf16 or fp16.
        micro_batch_tokens: Packed tokens of one micro-step.
        masked_share: Predicted positions a token.
        recompute: Whether layers are recomputed in the backward pass.
    """
    size = 4 if precision == "fp32" else 2
    ranks = {stage: world_size if zero_stage >= stage else 1 for stage in (1, 2, 3)}
    master = 0 if zero_stage == 0 else 4  # stage 0 trains the float32 weights themselves
    # Sums of gradients are float32; in 16 bits a micro-step's own gradients stand beside them.
    gradients = parameters * 4 / ranks[2] + (parameters * 2 / ranks[3] if size == 2 else 0)
    per_token = _activation_bytes(model, size, masked_share, recompute=recompute)
    return Memory(
        weights=parameters * size / ranks[3],
        gradients=gradients,
        optimizer=parameters * (8 + master) / ranks[1],
        activations=micro_batch_tokens * per_token,
        buffers=min(parameters, BUCKET_ELEMENTS) * 4 if world_size > 1 else 0,
    )


def activation_bytes_per_layer(model: ModelConfig, size: int) -> int:
    """Return what a layer keeps of a token for its backward pass, with the fused ops.

    Its input, packed Q, K and V, context, attention output, the first LayerNorm's output, the second's input and the
    feed-forward output before and after GELU; float32 statistics of both LayerNorms and of softmax.
    DeBERTa, without a fused op, keeps scaled queries and values, and of every pair of tokens the float32 probability,
    whether it is dropped, and what is left of it; sequences are taken to be as long as the model allows.

    Args:
        model: Sizes.
        size: Bytes of an element.
    """
    elements = 8 * model.hidden_size + 2 * model.intermediate_size
    if model.pos_att_type:
        pairs = model.num_attention_heads * model.max_position_embeddings
        return (elements + 2 * model.hidden_size) * size + 16 + pairs * (4 + 1 + size)
    return elements * size + 16 + 4 * model.num_attention_heads


def fits(total_gib: float, gpu: Gpu) -> bool:
    """Whether so much fits into a GPU, with some room left."""
    return total_gib <= MEMORY_SHARE * gpu.memory_gib


def fitting_budget(gpu: Gpu, *, floor: int, total_gib_of: dict[int, float]) -> int | None:
    """Return the largest budget whose total fits into the GPU, or None; ``floor`` is the longest instance."""
    fitting = [budget for budget, total in total_gib_of.items() if fits(total, gpu) and budget >= floor]
    return max(fitting, default=None)


def budgets() -> list[int]:
    """Return the token budgets that a table shows, powers of two."""
    shown = [SMALLEST_BUDGET]
    while shown[-1] < LARGEST_BUDGET:
        shown.append(2 * shown[-1])
    return shown


def checkpoint_gib(parameters: int) -> float:
    """Return the size of one checkpoint on disk: the float32 masters and two moments of every parameter."""
    return 4 * len(KINDS) * parameters / GIB


def describe_checkpoints(config: RunConfig, parameters: int) -> str:
    """Return what a run's checkpoints take at most, in words."""
    one, most = checkpoint_gib(parameters), config.most_checkpoints
    return f"checkpoints: {one:.2f} GiB each, up to {most} at a time: {most * one:.2f} GiB"


def _activation_bytes(model: ModelConfig, size: int, masked_share: float, *, recompute: bool) -> float:
    layer = activation_bytes_per_layer(model, size)
    layers = model.num_hidden_layers * layer
    if recompute:  # every layer's input, and one layer whole
        layers = model.num_hidden_layers * model.hidden_size * size + layer
    embeddings = 4 * model.hidden_size * size + 32
    # The backward pass holds a layer's gradients while it makes the next.
    encoder = layers + embeddings + layer / 2
    if model.generator_size is not None:  # ELECTRA: it has the head over the vocabulary, and goes first
        return encoder + _activation_bytes(model.generator(), size, masked_share, recompute=recompute)
    # Logits, and their float32 gradient.
    return encoder + masked_share * (model.padded_vocab_size * (size + 4) + 6 * model.hidden_size * size)
