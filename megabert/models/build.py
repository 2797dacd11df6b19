"""One place that chooses the class of a model, from its configuration."""

from megabert.config.families import Objective
from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.bert import BertForPreTraining
from megabert.models.electra import ElectraForPreTraining

PretrainingModel = BertForPreTraining | ElectraForPreTraining


def build_model(
    config: ModelConfig,
    *,
    objective: Objective | None = None,
    ops: OpsConfig | None = None,
    activation_checkpointing: bool = False,
) -> PretrainingModel:
    """Return the family's model for pre-training, without usable weights: initialise or load them next.

    Args:
        config: Sizes and family; ``vocab_size`` is a number, not ``auto``. With ``generator_size`` it is ELECTRA.
        objective: ``nsp``, ``sop`` or ``none``; None takes the family's usual one.
        ops: Backends of the fused ops; None chooses them by device.
        activation_checkpointing: Keep only each layer's input for the backward pass, and recompute the rest there.
    """
    if config.generator_size is not None:
        return ElectraForPreTraining(config, ops=ops, activation_checkpointing=activation_checkpointing)
    return BertForPreTraining(
        config,
        objective=objective or config.traits.objectives[0],
        ops=ops,
        activation_checkpointing=activation_checkpointing,
    )
