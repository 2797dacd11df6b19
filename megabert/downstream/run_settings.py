"""The beginning of a run: its settings, resolved, and the weights of another model if it starts from one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megabert.settings.config import loading
from megabert.settings.config.extensions import require_recorded
from megabert.settings.config.needs import RUN_NEEDS, refuse_idle
from megabert.settings.config.run import RunConfig

if TYPE_CHECKING:
    from megabert.downstream.export.sources import Source
    from megabert.models.build import InitialWeights

CONFIG_NAME = "config.yaml"
FIELDS_OF_TRAINING = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
"""Fields of the model that say how it is trained: the recipe's, whatever the source of the weights had."""
GENERATOR_CHOICES = ("generator_size", "generator_layers", "embedding_sharing")
"""Fields that choose the generator that is trained with the model."""


def resolve_run(
    run_dir: Path, recipe: str | None, fields: Mapping[str, Any], *, files: Sequence[Path] = ()
) -> RunConfig:
    """Resolve a run. Its own record wins over the sources of its weights, which may be gone by now.

    Args:
        run_dir: Run folder, new or not.
        recipe: Name or file; None for ``debug`` or, of a fork, the configuration of its run.
        fields: Nested fields that override recipe and files. None may be without effect.
        files: YAML files that override the recipe.

    Raises:
        ConfigError: Every problem of the configuration, or a field without effect.
    """
    own = run_dir / CONFIG_NAME
    fork = loading.last_said([*map(loading.read_yaml, files), fields], "fork")
    recorded = own if fork is None or own.is_file() else loading.split_fork(str(fork))[0] / CONFIG_NAME
    require_recorded(recorded, "optimizer.package")
    if recipe is None:
        recipe = "debug" if fork is None else str(recorded)
    config = loading.load_run_config(recipe, files, fields, model_of=partial(_model_of, recorded=recorded))
    refuse_idle(fields, loading.to_dict(config), RUN_NEEDS)
    return config


def _model_of(source: str, recorded: Path) -> dict[str, Any]:
    """Return the model's fields as the run has recorded them, or else as the source of its weights has them."""
    if recorded.is_file():
        return loading.to_dict(loading.merge_layers(RunConfig, recorded).model)
    from megabert.downstream.export.sources import open_source

    sizes = loading.to_dict(open_source(source).model)
    # Which generator is added to a masked LM is the recipe's to say.
    not_taken = (*FIELDS_OF_TRAINING, *(GENERATOR_CHOICES if sizes["generator_size"] is None else ()))
    return {name: value for name, value in sizes.items() if name not in not_taken}


def initial_weights(config: RunConfig, run_dir: Path) -> "InitialWeights | None":
    """Return the weights to start from; a run that has a checkpoint needs them no more."""
    if config.init_from is None or config.fork is not None:
        return None
    from megabert.checkpoints.loading import has_checkpoint
    from megabert.downstream.export.sources import open_source
    from megabert.training.run.folder import checkpoints_dir

    if has_checkpoint(checkpoints_dir(run_dir)):
        return None
    source = open_source(config.init_from)
    if config.init_vocabulary == "transfer":
        source = _with_vocabulary_of_shards(source, config)
    if not config.init_tiling:
        return source.weights
    from megabert.models.transfer import check_sizes, tile_weights

    check_sizes(source.model, config.model)
    target = replace(config.model, vocab_size=source.model.vocab_size)  # auto until the shards have been opened
    return replace(source.weights, read=lambda: tile_weights(source.weights.read(), source.model, target))


def _with_vocabulary_of_shards(source: "Source", config: RunConfig) -> "Source":
    """Return the source with the tokenizer of the first phase's shards, and its rows for that vocabulary."""
    from megabert.models.transfer import plan_transfer, transfer_vocabulary
    from megabert.tokens.shards.shard_set import ShardSet
    from megabert.tokens.tokenization import load_tokenizer

    shards = ShardSet.open(next(iter(loading.phase_data(config, config.phases[0]).values())))  # all have one tokenizer
    new = load_tokenizer(shards.tokenizer_dir)
    transfer = plan_transfer(source.load_tokenizer(), new)
    read = source.weights.read
    weights = replace(source.weights, tokenizer_sha256=new.sha256, read=lambda: transfer_vocabulary(read(), transfer))
    sizes = replace(source.model, vocab_size=new.vocab_size)
    return replace(source, model=sizes, tokenizer_dir=shards.tokenizer_dir, weights=weights)
