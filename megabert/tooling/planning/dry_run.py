"""``pretrain --dry-run``: opens configuration, data and state of a run on a number of ranks, and starts nothing."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from megabert.checkpoints.loading import has_checkpoint
from megabert.data.mixture import Positions
from megabert.engine.engine import refuse_precision
from megabert.foundation.errors import ConfigError
from megabert.models.build import InitialWeights
from megabert.observability.flops import Gpu, gpu_by_name, gpu_of_device, require_peak
from megabert.ops.backend import describe_choices
from megabert.ops.triton_support.tuned_tiles import read_tiles
from megabert.settings.config.run import RunConfig
from megabert.tooling.planning import memory
from megabert.tooling.planning.memory import count_parameters
from megabert.training.run.folder import checkpoints_dir, claim_run_folder
from megabert.training.run.start import RunInputs, begin_fork, open_inputs, resume
from megabert.training.state import TrainerState


class DryRun(NamedTuple):
    """A run that is not started."""

    inputs: RunInputs
    state: TrainerState
    """State before the first step that the run would make."""
    world_size: int
    device: torch.device
    gpu: Gpu | None
    """GPU of the run if it is known: the GPU that was asked for, or this machine's."""
    parameters: int

    @property
    def steps_left(self) -> list[int]:
        """Steps of each phase that the run would make."""
        return self.state.steps_left(self.inputs.config)

    def instances_left(self, index: int) -> int:
        """Return the instances of the steps that a phase has left, if no batch is skipped."""
        phase = self.inputs.config.phases[index]
        return phase.num_instances - phase.instances_of(phase.num_steps - self.steps_left[index])

    def memory_with(self, tokens: int) -> memory.Memory:
        """Return the memory of a rank with a token budget."""
        return memory.estimate_memory(
            self.inputs.config,
            self.inputs.statistics,
            parameters=self.parameters,
            zero_stage=self.inputs.zero_stage,
            world_size=self.world_size,
            micro_batch_tokens=tokens,
        )


def open_dry_run(
    config: RunConfig,
    run_dir: Path,
    *,
    initial: InitialWeights | None = None,
    world_size: int = 1,
    gpu: str | None = None,
    device: str | None = None,
) -> DryRun:
    """Open data, state and machine of a run, and start nothing.

    Args:
        config: The configuration, resolved from recipe, files and flags.
        run_dir: The folder that the run would write.
        initial: Weights to start from.
        world_size: Ranks to plan for. None of them is started.
        gpu: GPU to plan for, a name of `observability.gpus`; None takes this machine's.
        device: "cuda" or "cpu"; None takes a GPU if this machine has one.

    Raises:
        ConfigError, DataError, CheckpointError, KernelError: Whatever ``pretrain`` would refuse, except for damaged
            bytes in shards, kernels that differ from their definition, and a run folder that is in use.
    """
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not (gpu or has_gpu):
        raise ConfigError(
            "--device cuda: this process sees no GPU. Name one to plan for (--gpu), or use the CPU (--device cpu).",
            see="no-gpu-is-seen",
        )
    target = torch.device(device or ("cuda" if has_gpu else "cpu"))
    kind = gpu_by_name(gpu) if gpu else gpu_of_device(torch.cuda.get_device_name()) if target.type == "cuda" else None
    if gpu and kind and config.precision == "auto":
        config = replace(config, precision=kind.best_precision)
    if kind is None:
        refuse_precision(config.precision, target, config.model)
    elif config.precision == "fp8":
        require_peak(config.precision, kind)
    inputs = open_inputs(config, run_dir, device=target, initial=initial)
    claim_run_folder(run_dir, inputs.config)
    if gpu is None:
        _refuse_ops(inputs.config, target)
    return DryRun(
        inputs=inputs,
        state=_state(inputs, run_dir),
        world_size=world_size,
        device=target,
        gpu=kind,
        parameters=count_parameters(inputs.config.model, inputs.objective),
    )


def _refuse_ops(config: RunConfig, device: torch.device) -> None:
    """Refuse backends that cannot run on a device, and a file of tile sizes that is not for it."""
    model, precision, has_lamb = config.model, config.precision, config.optimizer.has_lamb_passes
    describe_choices(config.ops.backends, device.type, has_lamb=has_lamb, model=model, precision=precision)
    if config.ops.tile_sizes is not None:
        read_tiles(Path(config.ops.tile_sizes), device)


def _state(inputs: RunInputs, run_dir: Path) -> TrainerState:
    """Return the state with which the run would begin, as `find_start` does, and write nothing."""
    if has_checkpoint(checkpoints_dir(run_dir)):
        return resume(run_dir, inputs).state
    if inputs.config.fork is not None:
        return begin_fork(inputs.config.fork, inputs).state
    return TrainerState(data_sha256=inputs.data_sha256)


def data_positions(dry_run: DryRun) -> dict[int, Positions]:
    """Return where each phase that has steps left finds all builds, if no batch is skipped on the way."""
    inputs, state = dry_run.inputs, dry_run.state
    beginnings: dict[int, Positions] = {}
    for index in range(state.phase, len(inputs.shards)):
        if index > state.phase:
            state = state.next_phase(data_start=inputs.config.phases[index].data_start)
        beginnings[index], last = state.positions, inputs.config.phases[index].num_instances
        left = range(last - dry_run.instances_left(index), last)
        state = replace(state, positions=inputs.shards[index].train.take(state.positions, left)[1])
    return beginnings
