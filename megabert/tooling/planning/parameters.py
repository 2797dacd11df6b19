"""How many parameters a model has, from its sizes alone: torch, which would build it, takes seconds to import."""

from megabert.settings.config.families import Objective
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import MOMENTS, RunConfig


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
    """Return the elements of the layers' matrices, which Muon orthogonalises (`models.matrices`)."""
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
