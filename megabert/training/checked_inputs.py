"""What a run reads, opened and checked before anything is written: shards, tokenizer, engine file."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from megabert.config.deepspeed import derive_deepspeed, zero_stage_of
from megabert.config.families import Objective
from megabert.config.recipes import engine_path, phase_data
from megabert.config.run import RunConfig
from megabert.data.shard_set import ShardSet
from megabert.engine.engine import resolve_precision
from megabert.errors import DataError
from megabert.models.build import InitialWeights

DEFAULT_ENGINE = "zero1"


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """A configuration without ``auto`` in its science fields, and what goes with it."""

    config: RunConfig
    deepspeed: dict[str, Any]
    """Complete dictionary for DeepSpeed."""
    shards: tuple[tuple[ShardSet, ShardSet], ...]
    """Training and held-out split of each phase."""

    @property
    def objective(self) -> Objective:
        """What the shards' next-sentence labels mean: nsp, sop or none."""
        return self.shards[0][0].metadata.objective

    @property
    def zero_stage(self) -> int:
        """DeepSpeed's ZeRO stage."""
        return zero_stage_of(self.deepspeed)

    @property
    def data_sha256(self) -> tuple[str, ...]:
        """Identity of each phase's shards, wherever they are stored."""
        return tuple(train.manifest.data_sha256 for train, _ in self.shards)


def open_inputs(config: RunConfig, *, device: torch.device, initial: InitialWeights | None = None) -> RunInputs:
    """Open the shards, resolve every ``auto`` of a science field, and check all parts against each other.

    Raises:
        ConfigError: The engine file contradicts the recipe.
        DataError: Shards that are unfinished, damaged, or do not fit the model, the phases, or the initial weights.
    """
    folders = [phase_data(config, phase) for phase in config.phases]
    shards = tuple((ShardSet.open(folder, "train"), ShardSet.open(folder, "validation")) for folder in folders)
    if initial is not None:
        initial.check_tokenizer(shards[0][0].metadata.tokenizer_sha256, shards[0][0].folder)
    _check_shards(config, shards)
    config = _resolve(config, shards, device)
    return RunInputs(config=config, deepspeed=deepspeed_of(config, config.precision), shards=shards)


def deepspeed_of(config: RunConfig, precision: str) -> dict[str, Any]:
    """Return the complete dictionary for DeepSpeed that a configuration asks for.

    Args:
        config: Its engine file and its clipping norm are used.
        precision: ``fp32``, ``bf16`` or ``fp16``.

    Raises:
        ConfigError: The engine file contradicts the recipe.
    """
    engine = engine_path(DEFAULT_ENGINE if config.engine == "auto" else config.engine)
    return derive_deepspeed(engine, precision=precision, max_grad_norm=config.optimizer.max_grad_norm)


def _resolve(config: RunConfig, shards: tuple[tuple[ShardSet, ShardSet], ...], device: torch.device) -> RunConfig:
    precision = resolve_precision(config.precision, device)
    vocab_size = config.model.vocab_size
    if vocab_size == "auto":
        vocab_size = shards[0][0].metadata.vocab_size
    return replace(config, precision=precision, model=replace(config.model, vocab_size=vocab_size))


def _check_shards(config: RunConfig, shards: tuple[tuple[ShardSet, ShardSet], ...]) -> None:
    """Check the shards of every phase against the model and against each other."""
    first = shards[0][0]
    _check_objective(config, first)
    for i, ((train, _), phase) in enumerate(zip(shards, config.phases, strict=True)):
        metadata = train.metadata
        if metadata.max_seq_length > phase.max_seq_length:
            raise DataError(
                f"{train.folder}: instances of up to {metadata.max_seq_length} tokens, but "
                f"phases[{i}].max_seq_length={phase.max_seq_length}. Name shards of that length, or change the phase."
            )
        if not config.model.fits_pieces(metadata.vocab_size):
            raise DataError(
                f"{train.folder}: made with {metadata.vocab_size} pieces, but model.vocab_size="
                f"{config.model.vocab_size}. Leave model.vocab_size at auto, or build the shards with that tokenizer."
            )
        if (metadata.tokenizer_sha256, metadata.objective) != (
            first.metadata.tokenizer_sha256,
            first.metadata.objective,
        ):
            raise DataError(
                f"{train.folder}: tokenizer or objective differ from {first.folder}. "
                "Build the shards of all phases together: megabert-data build --lengths 128 512."
            )


def _check_objective(config: RunConfig, shards: ShardSet) -> None:
    """Check the shards' sentence objective against the family's."""
    model, objective = config.model, shards.metadata.objective
    allowed = model.traits.objectives
    if objective not in allowed:
        raise DataError(
            f"{shards.folder}: built with objective={objective}, but model.family={model.family} is pre-trained with "
            f"{' or '.join(allowed)}. Build the shards again: megabert-data build --objective {allowed[0]} ..."
        )
    if objective != "none" and model.type_vocab_size < 2:
        raise DataError(
            f"{shards.folder}: objective={objective} has two segments, but model.type_vocab_size="
            f"{model.type_vocab_size}. Raise it to 2, or build the shards with --objective none."
        )
