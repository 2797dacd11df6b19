"""``pretrain --dry-run``: check configuration and data, and say what the run would do."""

import shutil
from pathlib import Path

import torch

from megabert.config.recipes import phase_name
from megabert.config.run import RunConfig
from megabert.errors import CheckpointError
from megabert.models.build import build_model
from megabert.optim.schedules import learning_rate
from megabert.training.inputs import RunInputs, open_inputs
from megabert.training.run_folder import checkpoints_dir
from megabert.training.weights import InitialWeights

_CHECKPOINT_BYTES_PER_PARAMETER = 12
"""Float32 masters and two moments."""


def describe_run(config: RunConfig, run_dir: Path, *, initial: InitialWeights | None = None) -> str:
    """Return the plan of a run, phase by phase, and the disk that its checkpoints take.

    Raises:
        ConfigError, DataError, CheckpointError: What ``pretrain`` would refuse, too, but for damaged bytes in shards.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs = open_inputs(config, device=device, initial=initial)
    model = inputs.config.model
    lines = [
        f"recipe {config.name}: {model.family}, {model.num_hidden_layers} layers, {model.hidden_size} wide, "
        f"{model.vocab_size:,} pieces, {config.optimizer.name}, {inputs.config.precision}, ZeRO-{inputs.zero_stage}"
    ]
    for index in range(len(config.phases)):
        lines += _describe_phase(inputs, index)
    return "\n".join([*lines, _describe_disk(inputs, run_dir)])


def _describe_disk(inputs: RunInputs, run_dir: Path) -> str:
    """Return what the checkpoints take and what is free; refuse a disk that has no place for a second one."""
    with torch.device("meta"):
        model = build_model(inputs.config.model, objective=inputs.objective, ops=inputs.config.ops)
    one = sum(parameter.numel() for parameter in model.parameters()) * _CHECKPOINT_BYTES_PER_PARAMETER
    kept = inputs.config.checkpoint.keep_last + 2  # the best, and the one being written
    folder = next(parent for parent in checkpoints_dir(run_dir).absolute().parents if parent.is_dir())
    free = shutil.disk_usage(folder).free
    if free < 2 * one:
        raise CheckpointError(
            f"{folder}: {free / 2**30:.2f} GiB are free, but a checkpoint takes {one / 2**30:.2f} GiB and the one "
            "before it is kept. Free some space or name another --run-dir."
        )
    return (
        f"checkpoints: {one / 2**30:.2f} GiB each, up to {kept} at a time: {kept * one / 2**30:.2f} GiB; "
        f"{free / 2**30:.2f} GiB are free in {folder}"
    )


def _describe_phase(inputs: RunInputs, index: int) -> list[str]:
    phase, (train, held_out) = inputs.config.phases[index], inputs.shards[index]
    statistics = train.statistics
    instances = phase.steps * phase.global_batch_size
    warmup_steps = round(phase.steps * phase.warmup_ratio)
    rates = [learning_rate(phase, step) for step in (1, max(1, warmup_steps), phase.steps // 2 or 1, phase.steps)]
    return [
        f"{phase_name(inputs.config, index)}: {train.folder}, objective {train.metadata.objective}",
        f"  {statistics.rows:,} instances of {statistics.tokens / statistics.rows:.1f} tokens on average, at most "
        f"{statistics.max_seq_length}; {held_out.num_rows:,} held out",
        f"  {phase.steps:,} steps of {phase.global_batch_size:,} instances: {instances:,} instances, "
        f"{instances / statistics.rows:.2f} passes over the data",
        f"  learning rate {rates[0]:.2e} at step 1, {rates[1]:.2e} at {warmup_steps}, {rates[2]:.2e} half-way, "
        f"{rates[3]:.2e} at the end",
    ]
