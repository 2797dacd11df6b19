"""From a run's checkpoint to a Hugging Face folder with its model card."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from megabert.checkpoints.format import RunSummary, read_checkpoint_manifest
from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.config.loading import phase_name, to_dict
from megabert.config.run import RunConfig, Weights
from megabert.errors import MegabertError
from megabert.export.huggingface import write_huggingface
from megabert.export.model_card import FAMILY_TITLES, ModelCard
from megabert.observability.environment import describe_environment
from megabert.path_arguments import takes_paths
from megabert.shards.shard_set import ShardSet
from megabert.training.run.folder import checkpoints_dir, read_config, run_data, tokenizer_dir


@takes_paths
def export_run(
    run_dir: Path,
    folder: Path,
    *,
    checkpoint: str = "last",
    weights: Weights | None = None,
    facts: Mapping[str, Any] | None = None,
) -> int:
    """Write a run's checkpoint in Hugging Face form.

    Args:
        run_dir: The run folder.
        folder: Where to write: a new or empty folder, or an earlier export.
        checkpoint: ``last``, ``best`` (the lowest held-out loss of the last phase) or a step.
        weights: Whether to write the weights as they were trained, or their moving average. None writes them as they
            were trained, but for ``best`` as the validation scored them.
        facts: Fields of the card that no run records, such as ``languages`` and ``license``. By default,
            ``base_model`` is ``init_from``.

    Returns:
        The step of the checkpoint.

    Raises:
        CheckpointError, ConfigError, DataError: There is no such run or checkpoint, or the folder holds something else.
    """
    config = read_config(run_dir)
    path = find_checkpoint(checkpoints_dir(run_dir), checkpoint, falls_back=False)
    run, average = read_checkpoint_manifest(path).run, (weights or config.weights_of(checkpoint)) == "average"
    write_huggingface(
        folder,
        state=read_masters(path, average=average),
        config=config.model_in_phase(run.phase),
        tokenizer_dir=tokenizer_dir(run_dir),
        card=replace(_card(run_dir, config, run, checkpoint, average=average), **(facts or {})),
    )
    return run.step


def _card(run_dir: Path, config: RunConfig, run: RunSummary, checkpoint: str, *, average: bool) -> ModelCard:
    phases = {
        phase_name(config, index): f"{phase.num_steps:,} steps of {phase.global_batch_size:,} instances of up to "
        f"{phase.max_seq_length} tokens, learning rate {phase.learning_rate:g}, warm-up {phase.warmup_ratio:.2%}, "
        f"decay {phase.decay}"
        + ("" if phase.masked_lm_prob is None else f", {phase.masked_lm_prob:.1%} of the tokens masked")
        for index, phase in enumerate(config.phases)
    }
    is_scored = config.validation.weights == "average"
    return ModelCard(
        name=config.name,
        description=f"An encoder of the family {FAMILY_TITLES[config.model.family]}, pre-trained with megabert.",
        data=_data(run_dir, config, run),
        recipe={
            "recipe": config.name,
            "optimizer": ", ".join(f"{key} {value}" for key, value in to_dict(config.optimizer).items()),
            **phases,
            "precision": config.precision,
            "seed": config.seed,
            **({"started from": config.init_from} if config.init_from else {}),
        },
        checkpoint={
            "chosen as": checkpoint,
            **({"weights": f"moving average, decay {config.average.decay:g}"} if average else {}),
            "step": f"{run.step:,} (phase {run.phase + 1}, step {run.phase_step:,} of it)",
            "instances seen": f"{run.samples:,}",
        },
        base_model=config.init_from,
        # The latest validation may have been at an earlier step, or of the other weights: no metrics of these then.
        metrics=run.metrics if run.metrics_step == run.step and average == is_scored else {},
        software=describe_environment()["packages"],
    )


def _data(run_dir: Path, config: RunConfig, run: RunSummary) -> dict[str, Any]:
    """Describe the shards; of shards that are gone or replaced, only the hashes in the checkpoint are known."""
    rows: dict[str, Any] = {}
    for index, phase in enumerate(config.phases):
        name = phase_name(config, index)
        rows[f"{name}: shards SHA-256"] = run.data_sha256[index]
        try:
            train = ShardSet.open(run_data(run_dir, config, phase), "train")
        except MegabertError:
            continue
        if train.manifest.data_sha256 != run.data_sha256[index]:
            continue
        statistics = train.statistics
        rows[f"{name}: instances"] = f"{statistics.rows:,} of up to {statistics.max_seq_length} tokens"
        rows[f"{name}: objective"] = train.metadata.objective
        rows["tokenizer SHA-256"] = train.metadata.tokenizer_sha256
    return rows
