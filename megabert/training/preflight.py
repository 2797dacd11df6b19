"""``pretrain --dry-run``: check configuration and data, and say what the run would do."""

from megabert.config.deepspeed import derive_deepspeed
from megabert.config.recipes import engine_path, phase_data, phase_name
from megabert.config.run import PhaseConfig, RunConfig
from megabert.data.shard_set import ShardSet
from megabert.optim.schedules import learning_rate


def describe_run(config: RunConfig) -> str:
    """Return the plan of a run, phase by phase.

    Args:
        config: As resolved from recipe, files and flags.

    Raises:
        ConfigError, DataError: What ``pretrain`` would refuse, too.
    """
    precision = "fp32" if config.precision == "auto" else config.precision
    engine = engine_path("zero1" if config.engine == "auto" else config.engine)
    deepspeed = derive_deepspeed(engine, precision=precision, max_grad_norm=config.optimizer.max_grad_norm)
    stage = deepspeed.get("zero_optimization", {}).get("stage", 0)
    lines = [
        f"recipe {config.name}: {config.model.num_hidden_layers} layers, {config.model.hidden_size} wide, "
        f"{config.optimizer.name}, precision {config.precision}, ZeRO-{stage}"
    ]
    for index, phase in enumerate(config.phases):
        lines += _describe_phase(config, index, phase)
    return "\n".join(lines)


def _describe_phase(config: RunConfig, index: int, phase: PhaseConfig) -> list[str]:
    folder = phase_data(config, phase)
    train, held_out = ShardSet.open(folder, "train"), ShardSet.open(folder, "validation")
    statistics = train.statistics
    instances = phase.steps * phase.global_batch_size
    warmup_steps = round(phase.steps * phase.warmup_ratio)
    rates = [learning_rate(phase, step) for step in (1, max(1, warmup_steps), phase.steps // 2 or 1, phase.steps)]
    return [
        f"{phase_name(config, index)}: {folder}, objective {train.metadata.objective}",
        f"  {statistics.rows:,} instances of {statistics.tokens / statistics.rows:.1f} tokens on average, at most "
        f"{statistics.max_seq_length}; {held_out.num_rows:,} held out",
        f"  {phase.steps:,} steps of {phase.global_batch_size:,} instances: {instances:,} instances, "
        f"{instances / statistics.rows:.2f} passes over the data",
        f"  learning rate {rates[0]:.2e} at step 1, {rates[1]:.2e} at {warmup_steps}, {rates[2]:.2e} half-way, "
        f"{rates[3]:.2e} at the end",
    ]
