"""The plan of a run that is not started (``pretrain --dry-run``) as text."""

import shutil
from itertools import chain
from pathlib import Path

import numpy as np

from megabert.data.loader import PackedLoader
from megabert.data.mixture import Mixture, Positions, apportion
from megabert.data.packing import RankShare, shape_for
from megabert.data.step_packer import StepBatch, StepPacker
from megabert.foundation.errors import CheckpointError
from megabert.foundation.full_disk import existing_folder
from megabert.foundation.text_tables import span
from megabert.optim.schedules import learning_rate
from megabert.settings.config.loading import phase_name
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import RunConfig
from megabert.tokens.shards.checked_shards import verify_shards
from megabert.tooling.planning import memory
from megabert.tooling.planning.dry_run import DryRun, data_positions
from megabert.tooling.planning.estimate import describe_small_budget, estimate
from megabert.tooling.planning.passes import name_by_build, sum_by_source, warn_of
from megabert.tooling.planning.schedule_plot import draw_schedules
from megabert.tooling.planning.step_time import Cluster
from megabert.training.expected_time import cpu_seconds, describe_cpu_time
from megabert.training.first_budget import first_budget
from megabert.training.run.folder import checkpoints_dir

SAMPLED_STEPS = 2
"""Global batches that are packed, to say how full the micro-batches are."""
HASHED_SHARDS = 4
"""Shards of each split that are hashed, at most. The run itself hashes all of them."""


def describe_run(dry_run: DryRun, run_dir: Path) -> str:
    """Return the plan of a run as text, phase by phase, and the disk that its checkpoints take.

    A run that has begun, and a fork, are planned from their checkpoint on.

    Args:
        dry_run: Result of `open_dry_run`.
        run_dir: The folder that the run would write.

    Raises:
        DataError, CheckpointError: A sampled shard is damaged, or the disk cannot hold the checkpoints.
    """
    inputs, state, config = dry_run.inputs, dry_run.state, dry_run.inputs.config
    model, ranks = config.model, dry_run.world_size
    lines = [
        f"recipe {config.name}: {model.family}, {model.num_hidden_layers} layers, {model.hidden_size} wide, "
        f"{model.vocab_size:,} pieces, {dry_run.parameters / 1e6:.1f} million parameters, {config.optimizer.name}, "
        f"{config.precision}, ZeRO-{inputs.zero_stage}, {ranks} rank(s)"
    ]
    if state.is_done(inputs.config):
        return "\n".join([*lines, f"{run_dir} is done: {state.step:,} steps"])
    if state.step:
        phase = inputs.config.phases[state.phase]
        where = f"{phase_name(inputs.config, state.phase)}, step {state.phase_step:,} of {phase.num_steps:,}"
        lines.append(f"resumes at step {state.step:,} ({where})")
    first_step, beginnings = state.step + 1, data_positions(dry_run)
    for index, (phase, steps) in enumerate(zip(inputs.config.phases, dry_run.steps_left, strict=True)):
        lines += _describe_phase(dry_run, index, first_step)
        if index > state.phase and not set(inputs.data_sha256[index]).isdisjoint(chain(*inputs.data_sha256[:index])):
            lines.append(f"  {_describe_beginning(phase, inputs.shards[index].train, beginnings[index])}")
        first_step += steps
    lines += draw_schedules(inputs.config, [train.first.metadata.masked_lm_prob for train, _ in inputs.shards])
    warnings = [*_untrained_positions(config), *_odd_width(model), *warn_of(_passes_at_the_end(dry_run))]
    warnings += describe_small_budget(config)
    return "\n".join([*lines, *warnings, *_describe_time(dry_run), _describe_disk(dry_run, run_dir)])


def _untrained_positions(config: RunConfig) -> list[str]:
    """Name the rows of a table of positions that no phase reaches."""
    model, begin, end = config.model, config.longest_before(len(config.phases)), config.model.max_position_embeddings
    has_table = model.position_biased_input or model.enhanced_mask_decoder
    is_read = config.init_from is not None or any(phase.position_offset == "random" for phase in config.phases)
    texts = f"no phase is longer than {begin}, and the commands that use the model cut texts there"
    says = f"positions {begin} to {end - 1} are never trained: {texts}"
    return [says] if has_table and not is_read and begin < end else []


def _odd_width(model: ModelConfig) -> list[str]:
    """Name an inner width that suits another outer width, such as its default; families have 1.5 to 4 times it."""
    times = model.intermediate_size / model.hidden_size
    says = f"model.intermediate_size={model.intermediate_size} is {times:.3g} times hidden_size={model.hidden_size}"
    return [] if 1.2 < times < 6 else [f"{says}; BERT has 4 times, {4 * model.hidden_size}"]


def _passes_at_the_end(dry_run: DryRun) -> dict[str, float]:
    """Return the passes over each source of the steps that are left, and of earlier ones over the same shards."""
    read, passes = dict(dry_run.state.positions), []
    for index, (train, _) in enumerate(dry_run.inputs.shards):
        own = train.passes(dry_run.instances_left(index), read)
        passes.append(name_by_build(dry_run.inputs.config, train, own))
        for key in train.sha256:  # counted once
            read.pop(key, None)
    return sum_by_source(passes)


def _describe_time(dry_run: DryRun) -> list[str]:
    """Say how long the run takes: by datasheets on a GPU of the table, by a measurement on this machine's CPU."""
    inputs, ranks, gpu = dry_run.inputs, dry_run.world_size, dry_run.gpu
    if gpu and inputs.config.precision in gpu.peak_tflops:  # of the others nothing is known
        nodes = -(-ranks // gpu.gpus_per_node)
        cluster = Cluster(gpu=gpu, nodes=nodes, gpus_per_node=-(-ranks // nodes))
        phases = zip(dry_run.steps_left, estimate(inputs.config, cluster).phases, strict=True)
        time = span(sum(steps * phase.step.total_s for steps, phase in phases))
        gpus = f"{nodes} x {cluster.gpus_per_node} {gpu.name}"
        return [f"expected: about {time} on {gpus}; megabert estimate says what that rests on"]
    if gpu or dry_run.device.type == "cuda":  # a GPU whose datasheet is not known
        return []
    # However many ranks share this CPU, together they have all of it.
    return [describe_cpu_time(inputs.config, cpu_seconds(inputs.config, inputs.statistics), dry_run.steps_left)]


def _describe_beginning(phase: PhaseConfig, train: Mixture, positions: Positions) -> str:
    if phase.data_start == "beginning":
        return "reads the shards of an earlier phase again from their first instance (data_start: beginning)"
    place = "; ".join(
        (f"{name} at " if name else "") + f"epoch {position.epoch + 1}, instance {position.offset + 1:,}"
        for name, position in train.at(positions)
    )
    return f"continues in the shards of an earlier phase after its last instance: {place} (data_start: continue)"


def _describe_disk(dry_run: DryRun, run_dir: Path) -> str:
    """Return the size of the checkpoints and of the free disk; refuse a disk that cannot hold two of them."""
    # A new checkpoint is complete before the previous one is deleted, so both have to fit.
    one = memory.checkpoint_gib(dry_run.inputs.config, dry_run.parameters)
    folder = existing_folder(checkpoints_dir(run_dir).parent)
    free = shutil.disk_usage(folder).free / memory.GIB
    if free < 2 * one:
        raise CheckpointError(
            f"{folder}: {free:.2f} GiB are free, but a checkpoint takes {one:.2f} GiB and the one before it is kept. "
            "Free some space or name another --run-dir.",
            see="a-checkpoint-cannot-be-written",
        )
    return (
        f"{memory.describe_checkpoints(dry_run.inputs.config, dry_run.parameters)}; {free:.2f} GiB are free in {folder}"
    )


def _describe_phase(dry_run: DryRun, index: int, first_step: int) -> list[str]:
    inputs = dry_run.inputs
    phase, (train, held_out) = inputs.config.phases[index], inputs.shards[index]
    statistics, rows = train.statistics, train.num_rows
    folders = ", ".join(str(source.folder) for source in train.sources)
    title = f"{phase_name(inputs.config, index)}: {folders}, objective {train.first.metadata.objective}"
    left, instances = dry_run.steps_left[index], dry_run.instances_left(index)
    if not left:
        return [f"{title}, {_check_files(train, held_out)}; no step is left"]
    # The learning rate is shown where its curve bends, and also at the last step but one: the last one's is 0.
    steps = phase.num_steps
    warmup_steps = round(steps * phase.warmup_ratio)
    decay_start = round(steps * (1 - (phase.decay_ratio or 0)))
    key_steps = sorted(
        {max(steps - left + 1, step) for step in (1, warmup_steps, steps // 2, decay_start, steps - 1, steps)}
    )
    rates = ", ".join(f"{learning_rate(phase, step):.2e} at {step:,}" for step in key_steps)
    return [
        title,
        f"  {rows:,} instances of {statistics.tokens / rows:.1f} tokens on average, at most "
        f"{statistics.max_seq_length}; {held_out.num_rows:,} held out; {_check_files(train, held_out)}",
        f"  {left:,} steps of {_describe_batch(phase)} (run steps {first_step:,} to {first_step + left - 1:,}): "
        f"{instances:,} instances, {instances / rows:.2f} passes over the data",
        *_describe_sources(train, instances),
        f"  learning rate {rates} ({phase.decay})",
        *_describe_masks(phase, train),
        *_describe_packing(dry_run, index),
    ]


def _describe_sources(train: Mixture, instances: int) -> list[str]:
    """Say for each of several sources its share of the tokens, and the passes over its instances."""
    counts = apportion(train.weights, instances)
    lengths = [source.statistics.tokens / source.num_rows for source in train.sources]
    tokens = [count * length for count, length in zip(counts, lengths, strict=True)]
    return [
        f"  {name}: {own / max(1, sum(tokens)):.1%} of the tokens, {count:,} instances, "
        f"{count / source.num_rows:.2f} passes over its {source.num_rows:,}"
        for name, source, count, own in zip(train.names, train.sources, counts, tokens, strict=True)
        if name
    ]


def _describe_batch(phase: PhaseConfig) -> str:
    first, last = phase.initial_batch_size, f"{phase.global_batch_size:,} instances"
    return last if first is None else f"{first:,} to {last}, growing over {phase.batch_warmup_steps:,} batches"


def _describe_masks(phase: PhaseConfig, train: Mixture) -> list[str]:
    """Say how the loader masks, where the phase sets something of it."""
    masking = train.first.masking_in(phase)
    if masking is None or masking == train.first.metadata.masking_options:
        return []
    shown = " / ".join(f"{share:.0%}" for share in masking.actions)
    return [
        f"  masks: {phase.describe_masks() or f'{masking.masked_lm_prob:.1%} of the tokens masked'}, at most "
        f"{masking.max_predictions_per_seq} of an instance, {shown} [MASK] / random / kept; "
        f"held out {train.first.metadata.masked_lm_prob:.1%}"
    ]


def _check_files(*mixtures: Mixture) -> str:
    """Hash some shards of each split, evenly spaced. That every file exists is known: the splits have been opened."""
    hashed, splits = 0, [split for mixture in mixtures for split in mixture.sources]
    for split in splits:
        sample = {int(index) for index in np.linspace(0, len(split.shards) - 1, HASHED_SHARDS)}
        verify_shards(split, sorted(sample))
        hashed += len(sample)
    return f"{sum(len(split.shards) for split in splits)} files there, SHA-256 of {hashed} right"


def _describe_packing(dry_run: DryRun, index: int) -> list[str]:
    """Pack the first global batches as rank 0 would, padded as for a GPU."""
    config, train = dry_run.inputs.config, dry_run.inputs.shards[index].train
    phase, ranks = config.phases[index], dry_run.world_size
    batch, budget = phase.global_batch_size, _budget(dry_run, index)
    shape = shape_for(train.statistics_in(phase), global_batch_size=batch, world_size=ranks, micro_batch_tokens=budget)
    share = RankShare(shape=shape, world_size=ranks, pad=True)
    masking = train.first.masking_in(phase)
    packer = StepPacker(train, seed=config.seed, global_batch_size=batch, share=share, masking=masking)
    with PackedLoader(packer, num_steps=SAMPLED_STEPS) as loader:
        batches = list(loader)
    held = dry_run.memory_with(shape.tokens)
    parts = held.parts_gib if dry_run.gpu else held.tensors_gib
    room = f" (the GPU has {dry_run.gpu.memory_gib:.0f})" if dry_run.gpu else ""
    return [
        f"  each rank: {len(batches[0].micro_batches)} micro-step(s) of at most {shape.tokens:,} of "
        f"{budget:,} tokens, {shape.sequences:,} sequences, {shape.masked:,} masked; {_real_share(batches)}",
        f"  memory per rank: {memory.describe_memory(parts)}{room}",
    ]


def _real_share(batches: list[StepBatch]) -> str:
    """Say how full the padded micro-batches are, and which shapes rank 0 will see."""
    micro_batches = [micro_batch for batch in batches for micro_batch in batch.micro_batches]
    real = sum(micro_batch.num_tokens for micro_batch in micro_batches)
    padded = sum(len(micro_batch.input_ids_T) for micro_batch in micro_batches)
    shapes = [f"{size:,}" for size in sorted({len(micro_batch.input_ids_T) for micro_batch in micro_batches})]
    named = ", ".join(shapes[:4]) + (", ..." if len(shapes) > 4 else "")
    return f"on a GPU padded to {named} tokens, {100 * real / padded:.1f}% of them real (first {len(batches)} steps)"


def _budget(dry_run: DryRun, index: int) -> int:
    """Return the token budget that is set, or the one with which the run would begin its search."""
    config, statistics = dry_run.inputs.config, dry_run.inputs.shards[index].train.statistics
    if config.micro_batch_tokens != "auto":
        return config.micro_batch_tokens
    share = config.phases[index].global_batch_size * statistics.tokens // (statistics.rows * dry_run.world_size)
    floor = statistics.max_seq_length
    if dry_run.gpu is None:
        return first_budget(dry_run.device.type, share=share, floor=floor)
    totals = {tokens: dry_run.memory_with(tokens).total_gib for tokens in (*memory.BUDGETS, floor)}
    return memory.planned_budget(dry_run.gpu, share=share, floor=floor, total_gib_of=totals) or floor
