"""What is wrong between the parts of a configuration, which no part can check by itself."""

from collections.abc import Mapping, Sequence
from typing import Any

from megabert.config.run import RunConfig
from megabert.errors import ConfigError


def contradictions(config: RunConfig, *, positions_from: str | None = None) -> list[str]:
    """Return what is wrong between sections, a line for each.

    Args:
        config: The whole run.
        positions_from: Source of weights that ``model.max_position_embeddings`` comes from; None where it was said.
    """
    problems = []
    if config.init_tiling and config.init_from is None and config.fork is None:
        problems.append("  init_tiling: there is nothing to tile; set init_from to a smaller model, or leave it out.")
    if config.init_vocabulary == "transfer" and config.init_from is None and config.fork is None:
        problems.append(
            "  init_vocabulary=transfer: there is nothing to transfer; set init_from to a model, or leave it out."
        )
    if config.validation.weights == "average" and config.average.decay is None:
        problems.append(
            "  validation.weights=average, but no average is kept: set average.decay, such as 0.999, or take "
            "validation.weights trained."
        )
    for i, phase in enumerate(config.phases):
        if phase.max_seq_length > config.model.max_position_embeddings:
            problems.append(_too_long(i, config, positions_from))
        if phase.global_rope_theta is not None and not config.model.traits.is_pre_norm:
            problems.append(
                f"  phases[{i}].global_rope_theta={phase.global_rope_theta:g} goes with model.family=modernbert, not "
                f"{config.model.family}, which has no rotary positions. Leave it out."
            )
        tokens = config.micro_batch_tokens
        if tokens != "auto" and tokens < phase.max_seq_length:
            problems.append(
                f"  micro_batch_tokens={tokens} is below phases[{i}].max_seq_length={phase.max_seq_length}: "
                f"one instance would not fit. Raise it to {phase.max_seq_length} or more."
            )
    return problems


def _too_long(index: int, config: RunConfig, source: str | None) -> str:
    """Return what is said of a phase longer than the positions; a source may have fewer of these than the recipe."""
    limit, lengths = config.model.max_position_embeddings, [phase.max_seq_length for phase in config.phases]
    found = f"  phases[{index}].max_seq_length={lengths[index]} is above "
    if source is None:
        return (
            f"{found}model.max_position_embeddings={limit}. Build shards of length {limit} or less, or raise "
            "model.max_position_embeddings."
        )
    found += (
        f"the {limit} positions of init_from={source}. Build shards of length {limit} or less and set "
        f"--phases.{index}.max-seq-length {limit}, or "
    )
    if not config.model.traits.is_pre_norm:
        return f"{found}take weights with more positions."
    return f"{found}add --model.max-position-embeddings {max(lengths)}: rotary positions have no weights."


def check_family(recipe: str, layers: Sequence[Mapping[str, Any]], model: Mapping[str, Any], source: str) -> None:
    """Refuse a source of another family than the one that recipe and flags ask for."""
    wanted = [layer["family"] for layer in layers if layer.get("family")]
    family, given = (wanted or ["bert"])[-1], model.get("family", "bert")
    if family != given:
        raise ConfigError(
            f"init_from={source}: its model is of the family {given}, recipe {recipe} trains {family}. Take a recipe "
            f"of that family, or add --model.family {given}."
        )
