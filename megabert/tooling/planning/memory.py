"""A model's parameters, a GPU's memory in training and a checkpoint's disk, counted from sizes and tensors.

Parameters are counted from sizes alone: torch, which would build the model, takes seconds to import.

The tensors of a layer are compared with torch's own record of them on a CPU (``tests/unit/tooling/planning``). The
totals have not been compared with a GPU's yet.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from megabert.observability.flops import Gpu
from megabert.settings.config.deepspeed import DEFAULT_BUCKET_SIZE, IN_FLIGHT
from megabert.settings.config.families import Objective
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import MOMENTS, RunConfig
from megabert.tokens.shards.folder import InstanceStatistics
from megabert.training.first_budget import first_budget

GIB = 2**30
MEMORY_SHARE = 0.95
"""Share of a GPU's memory that a plan may use."""
OVERHEAD_GIB = 2.5
"""Memory of the CUDA context, NCCL's buffers and the allocator's gaps. Assumed, not measured."""
BUCKET_ELEMENTS = 500_000_000
"""Stages 0 and 3 copy gradients into buffers of at most this many elements to reduce them."""
BUDGETS = tuple(2**exponent for exponent in range(11, 18))
"""Token budgets that a table shows: 2,048 to 131,072."""
MASKED_SHARE = 0.16
"""Predicted positions per token that activations are counted for, unless the data of a phase have more."""


class Memory(NamedTuple):
    """Bytes on one GPU at the fullest moment of a step."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    """Buffers of the gradients' reduction, which begins after the backward pass has freed the activations."""

    @property
    def tensors_gib(self) -> dict[str, float]:
        """What torch allocates, by name. Activations and the buffers are not there at the same time."""
        parts = {"weights": self.weights, "optimizer": self.optimizer, "gradients": self.gradients}
        has_activations = self.activations >= self.buffers
        parts |= {"activations": self.activations} if has_activations else {"buffers": self.buffers}
        return {name: size / GIB for name, size in parts.items()}

    @property
    def parts_gib(self) -> dict[str, float]:
        """The parts of the GPU's memory by name: the tensors, and the share of driver, NCCL and allocator."""
        return {**self.tensors_gib, "CUDA, NCCL and gaps (assumed)": OVERHEAD_GIB}

    @property
    def total_gib(self) -> float:
        """Sum of all parts."""
        return sum(self.parts_gib.values())


def estimate_memory(
    config: RunConfig,
    statistics: Sequence[InstanceStatistics] = (),
    *,
    parameters: int,
    zero_stage: int,
    world_size: int,
    micro_batch_tokens: int,
) -> Memory:
    """Return what one GPU's memory holds at the fullest moment of a step.

    Args:
        config: The run; ``model.vocab_size`` must be a number, and ``precision`` not ``auto``.
        statistics: Totals of each phase's data under its masks; without them the share of masks is ``MASKED_SHARE``.
        parameters: Number of parameters.
        zero_stage: ZeRO stage, 0 to 3.
        world_size: Number of ranks.
        micro_batch_tokens: Packed tokens of one micro-step.
    """
    # The ranks share whatever a stage shards: stage 1 the optimizer, 2 also gradients, 3 also weights.
    size = 4 if config.precision == "fp32" else 2
    ranks = {stage: world_size if zero_stage >= stage else 1 for stage in (1, 2, 3)}
    master = 0 if zero_stage == 0 else 4  # stage 0 trains the float32 weights themselves
    # Gradients are accumulated in float32; in 16 bits there are also the current micro-step's, which stages 1
    # and 2 free as they come.
    gradients = parameters * 4 / ranks[2] + (parameters * 2 / ranks[3] if size == 2 and zero_stage == 3 else 0)
    if zero_stage == 2:
        # Buckets that are filled and sent, and the vocabulary's bucket, which the head begins and the embeddings end.
        vocabulary = config.model.padded_vocab_size * config.model.embedding_width
        gradients += 4 * min(parameters, (IN_FLIGHT + 1) * DEFAULT_BUCKET_SIZE + vocabulary)
    # Stage 1 scatters into a tensor of the rank's share; at stage 2 this share is all that is kept.
    reduced = {1: parameters / world_size, 2: 0}.get(zero_stage, min(parameters, BUCKET_ELEMENTS))
    masked = max([MASKED_SHARE, *(data.masked_tokens / data.tokens for data in statistics)])
    # The z-loss keeps the logits in float32 as well, and their gradient.
    masked_bytes = masked * config.model.padded_vocab_size * 8 if config.z_loss else 0
    per_token = masked_bytes + _activation_bytes(
        config.model, size, recompute=config.activation_checkpointing, masked=masked
    )
    if config.model.generator_size is not None and not all(phase.replaced_tokens for phase in config.phases):
        per_token += _head_bytes(config.model, size, masked=masked)  # the discriminator is a masked LM, too
    average = 0 if config.average.decay is None else 4
    # A byte for each of the layers' weights, and for its transpose; stage 3 casts a weight whenever it is gathered.
    casts = 2 * count_layer_matrices(config.model) if config.precision == "fp8" and zero_stage < 3 else 0
    return Memory(
        weights=parameters * size / ranks[3] + casts,
        gradients=gradients,
        # The optimizer's float32 tensors, the master, and the moving average.
        optimizer=(4 * optimizer_elements(config, parameters) + parameters * (master + average)) / ranks[1],
        activations=micro_batch_tokens * per_token,
        buffers=reduced * 4 if world_size > 1 else 0,
    )


def activation_bytes_per_layer(model: ModelConfig, size: int) -> int:
    """Return the bytes that a layer keeps per token for its backward pass, with the fused ops.

    These are its input, packed Q, K and V, the context, the attention's output, the output of the first LayerNorm, the
    input of the second, and the feed-forward's inner layer before and after GELU: 8 hidden sizes and 2 intermediate
    ones. The statistics of both LayerNorms and of softmax are float32.

    ModernBERT keeps both projections of the feed-forward and their gated product, and inputs and outputs of two
    LayerNorms.

    Args:
        model: The model's sizes.
        size: Bytes per element.
    """
    inner = 3 if model.traits.is_pre_norm else 2
    elements = 8 * model.hidden_size + inner * model.intermediate_size
    return elements * size + 16 + 4 * model.num_attention_heads


def scratch_bytes(model: ModelConfig, size: int) -> int:
    """Return the bytes per token that a layer's backward pass takes for a while: none but in a DeBERTa.

    These are the products of contents with positions, and the gradient of the scores once for queries and, if keys
    meet positions, once for keys. Sequences are taken to be as long as the model allows. With very many tokens it is
    less, because only some heads are worked on at a time (``ops.attention.disentangled.triton.SCRATCH``).

    Args:
        model: The model's sizes.
        size: Bytes per element.
    """
    if not model.pos_att_type:
        return 0
    longest = model.max_position_embeddings
    positions = min(2 * model.relative_span, 2 * longest - 1)
    pairs = longest * (1 + ("p2c" in model.pos_att_type))
    return model.num_attention_heads * (len(model.pos_att_type) * positions + pairs) * size


def fits(total_gib: float, gpu: Gpu) -> bool:
    """Whether so much fits into a GPU with some room left."""
    return total_gib <= MEMORY_SHARE * gpu.memory_gib


def planned_budget(gpu: Gpu, *, share: int, floor: int, total_gib_of: dict[int, float]) -> int | None:
    """Return the token budget that a phase finds by trying: its first try, or the largest that fits; None if none does.

    Args:
        gpu: The GPU.
        share: Tokens that a rank has to do in a step: no budget needs to be larger.
        floor: Tokens of the longest instance: a budget below it could not hold one.
        total_gib_of: Memory by token budget.
    """
    fitting = [budget for budget, total in total_gib_of.items() if fits(total, gpu) and budget >= floor]
    return min(max(fitting), first_budget("cuda", share=share, floor=floor)) if fitting else None


def checkpoint_gib(config: RunConfig, parameters: int) -> float:
    """Return the size of one checkpoint on disk: float32 masters, optimizer state, the average if one is kept."""
    weights = parameters * (1 + (config.average.decay is not None))
    return 4 * (weights + optimizer_elements(config, parameters)) / GIB


def describe_checkpoints(config: RunConfig, parameters: int) -> str:
    """Return the largest size of a run's checkpoints, in words."""
    one, most = checkpoint_gib(config, parameters), config.most_checkpoints
    return f"checkpoints: {one:.2f} GiB each, up to {most} at a time: {most * one:.2f} GiB"


def describe_memory(parts_gib: Mapping[str, float]) -> str:
    """Return the parts of a memory and their sum, to the digits that are shown."""
    total = sum(round(size, 2) for size in parts_gib.values())
    return f"{total:.2f} GiB = " + " + ".join(f"{name} {size:.2f}" for name, size in parts_gib.items())


def _activation_bytes(model: ModelConfig, size: int, *, recompute: bool, masked: float) -> float:
    layer = activation_bytes_per_layer(model, size)
    layers = model.layer_passes * layer
    if recompute:  # the input of every layer, and everything of the one that is being recomputed
        layers = model.layer_passes * model.hidden_size * size + layer
    embeddings = 4 * model.hidden_size * size + 32
    # The backward pass holds gradients of one layer's activations while it computes gradients of the layer below.
    encoder = layers + embeddings + layer / 2 + scratch_bytes(model, size)
    if model.generator_size is not None:  # ELECTRA: the generator runs first, and has the head over the vocabulary
        return encoder + _activation_bytes(model.generator(), size, recompute=recompute, masked=masked)
    return encoder + _head_bytes(model, size, masked=masked)


def _head_bytes(model: ModelConfig, size: int, *, masked: float) -> float:
    """Return the bytes per token of the logits of the masked positions, and of their float32 gradient."""
    return masked * (model.padded_vocab_size * (size + 4) + 6 * model.hidden_size * size)


def count_parameters(model: ModelConfig, objective: Objective | None = None) -> int:
    """Return the number of a model's parameters, tied ones counted once and the vocabulary's padding included.

    Args:
        model: Sizes and family; ``vocab_size`` is a number.
        objective: ``nsp``, ``sop`` or ``none``; None takes the family's usual one.
    """
    h = model.hidden_size
    embeddings = _embeddings(model)
    if model.generator_size is not None:  # two encoders, two heads, and in ELECTRA one set of embeddings
        generator = model.generator()
        head = h * h + h + h + 1 + (_norm(model, h) if model.traits.detects_beside_first_token else 0)
        if model.embedding_sharing is not None:  # a difference is a table, too
            shared = model.padded_vocab_size * model.embedding_width if model.embedding_sharing == "shared" else 0
            embeddings += _embeddings(generator) - shared
        return embeddings + _encoder(model) + head + _encoder(generator) + _masked_lm_head(generator)
    has_sentences = (objective or model.traits.objectives[0]) != "none"
    sentences = (h * h + h) + (2 * h + 2) if has_sentences else 0  # the pooler, and its head
    return embeddings + _encoder(model) + _masked_lm_head(model) + sentences


def count_layer_matrices(model: ModelConfig) -> int:
    """Return the elements of the layers' matrices, which Muon orthogonalises (`models.matrices`) and fp8 multiplies."""
    h, f, layers = model.hidden_size, model.intermediate_size, model.num_hidden_groups or model.num_hidden_layers
    positions = 0 if model.share_att_key else len(model.pos_att_type)  # projections of relative positions
    matrices = layers * ((4 + positions) * h * h + (3 if model.traits.is_pre_norm else 2) * h * f)
    return matrices + (0 if model.generator_size is None else count_layer_matrices(model.generator()))


def optimizer_elements(config: RunConfig, parameters: int) -> int:
    """Return how many float32 numbers the optimizer keeps beside the weights; Muon one per element of a matrix."""
    saved = count_layer_matrices(config.model) if config.optimizer.name == "muon" else 0
    return parameters * len(MOMENTS) - saved


def _norm(model: ModelConfig, width: int) -> int:
    return width * (2 if model.traits.has_biases else 1)


def _embeddings(model: ModelConfig) -> int:
    positions = model.max_position_embeddings if model.position_biased_input else 0
    rows = model.padded_vocab_size + positions + model.type_vocab_size
    if model.projects_embeddings and model.traits.norm_after_projection:
        return (rows + model.hidden_size) * model.embedding_width + _norm(model, model.hidden_size)
    return rows * model.embedding_width + _norm(model, model.embedding_width)


def _masked_lm_head(model: ModelConfig) -> int:
    e = model.embedding_width
    bias = e if model.traits.has_biases else 0
    positions = model.max_position_embeddings * model.hidden_size if model.enhanced_mask_decoder else 0
    return model.hidden_size * e + bias + _norm(model, e) + model.padded_vocab_size + positions


def _encoder(model: ModelConfig) -> int:
    h, layers = model.hidden_size, model.num_hidden_groups or model.num_hidden_layers
    projects = model.projects_embeddings and not model.traits.norm_after_projection
    projection = model.embedding_width * h + h if projects else 0
    relative = 2 * model.relative_span * h if model.pos_att_type else 0
    relative += _norm(model, h) if relative and model.norm_rel_ebd == "layer_norm" else 0
    convolution = h * h * model.conv_kernel_size + h + _norm(model, h) if model.conv_kernel_size else 0
    if model.traits.is_pre_norm:  # the first layer has no LayerNorm of its own, and one follows the last layer
        stack = layers * (4 * h * h + 3 * h * model.intermediate_size + 2 * _norm(model, h))
    else:
        stack = layers * _post_norm_layer(model)
    return projection + stack + relative + convolution


def _post_norm_layer(model: ModelConfig) -> int:
    """Return the parameters of attention, feed-forward and their two LayerNorms, biases included."""
    h, f = model.hidden_size, model.intermediate_size
    key_bias = h if model.traits.has_key_bias else 0
    attention = 4 * h * h + 3 * h + key_bias  # queries, keys, values, output
    if model.pos_att_type and not model.share_att_key:  # projections of relative positions
        attention += (h * h + key_bias) * ("c2p" in model.pos_att_type)
        attention += (h * h + h) * ("p2c" in model.pos_att_type)
    return attention + 2 * h * f + f + h + 2 * _norm(model, h)
