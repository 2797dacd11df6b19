"""From a configuration to the model that is pre-trained."""

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
    """Return the family's model for pre-training; its weights mean nothing until they are initialised or loaded.

    Args:
        config: Shape and family; ``vocab_size`` is a number.
        objective: ``nsp``, ``sop`` or ``none``; None: the family's usual one.
        ops: Backends; None chooses them by device.
        activation_checkpointing: Recompute each layer in the backward pass.
    """
    if config.generator_size is not None:
        return ElectraForPreTraining(config, ops=ops, activation_checkpointing=activation_checkpointing)
    return BertForPreTraining(
        config,
        objective=objective or config.traits.objectives[0],
        ops=ops,
        activation_checkpointing=activation_checkpointing,
    )
