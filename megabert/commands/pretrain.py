"""Train a BERT on instance shards, or resume a run.

Every field of the configuration is a flag by its path; precedence: default < recipe < --config files < flags. N is the
number of an element, from 0: --phases.0.steps 100. Hyphens and underscores are both read.

The same command resumes the run that --run-dir holds. Ctrl-C, SIGTERM or SIGUSR1 to any rank: all ranks save between
two steps and exit with 75; RUN/status.json says so if a launcher hides the code.

Examples:
  megabert pretrain --recipe debug --data.path runs/demo-data --run-dir runs/first
  deepspeed --num_gpus 8 --module megabert pretrain --recipe bert_base --data.path DATA --run-dir runs/base
  torchrun --nproc_per_node 2 -m megabert pretrain --recipe debug --data.path DATA --run-dir runs/two
  megabert pretrain --recipe bert_base_1gpu --init-from FOLDER --data.path DATA --run-dir runs/continued
  megabert pretrain --recipe bert_large --init-from BASE --init-tiling --data.path DATA --run-dir runs/large
  megabert pretrain --recipe modernbert_1gpu --init-from HF --init-vocabulary transfer --data.path DATA
  megabert pretrain --fork runs/base@4000 --run-dir runs/gentler --phases.0.learning-rate 1e-4
"""

from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megabert.distributed.environments import before_ranks_meet, describe_rank, find_launcher, own_rank
from megabert.foundation.errors import EXIT_STOPPED
from megabert.settings.command_line.program import Parser, positive, refuse_flags
from megabert.settings.command_line.terminal import loading
from megabert.settings.config.loading import (
    last_said,
    load_run_config,
    merge_layers,
    phase_data,
    read_yaml,
    shipped_names,
    split_fork,
    to_dict,
    to_yaml,
)
from megabert.settings.config.needs import RUN_NEEDS, refuse_idle
from megabert.settings.config.run import RunConfig
from megabert.training.recovery.stop_signals import StopSignals

if TYPE_CHECKING:
    from megabert.downstream.export.sources import Source
    from megabert.models.build import InitialWeights

CONFIG_NAME = "config.yaml"
FIELDS_OF_TRAINING = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
"""Fields of the model that say how it is trained: the recipe's, whatever the source of the weights had."""
GENERATOR_CHOICES = ("generator_size", "generator_layers", "embedding_sharing")
"""Fields that choose the generator that is trained with the model."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    recipes = ", ".join(shipped_names("recipe"))
    text = f"what to train: {recipes}, or a file (default: debug; with --fork that run's configuration)"
    parser.add_argument("--recipe", metavar="NAME|FILE", help=text)
    parser.add_config_files(under="the recipe")
    parser.add_argument("--run-dir", default="runs/run", metavar="DIR", help="folder of the run (default: runs/run)")
    parser.add_device()
    parser.add_stops(dry_run="check configuration and data, show the plan")
    text = "ranks that --dry-run plans for (default: the launcher's, or 1)"
    parser.add_argument("--world-size", type=positive, metavar="N", help=text)
    text = "GPU that --dry-run plans for, as for megabert estimate (default: this machine's)"
    parser.add_argument("--gpu", metavar="KIND", help=text)
    text = "record these steps, N or N-M, with torch.profiler into RUN/profile (rank 0)"
    parser.add_argument("--profile", metavar="STEPS", help=text)
    parser.add_rule("--world-size", needs=["--dry-run"])
    parser.add_rule("--gpu", needs=["--dry-run"])
    parser.add_rule("--profile", excludes=["--logging.profile-steps"])
    phase = ("phases.N.steps", "phases.N.global-batch-size", "phases.N.learning-rate")
    machine = ("engine", "precision", "micro-batch-tokens")
    first = ("recipe", "data.path", "run-dir", *phase, *machine, "seed", "init-from", "dry-run")
    data = ("data", "phases.N", "")
    sections = (*data, "model", "optimizer", "average", "checkpoint", "validation", "logging", "ops")
    parser.add_fields(RunConfig, first=first, sections=sections)


def run(options: Namespace) -> int:
    """Resolve the configuration, train."""
    with before_ranks_meet():
        if options.device == "cpu":
            refuse_flags(["--gpu"], options.given, "with --device cpu")
        if options.profile is not None:
            options.fields.setdefault("logging", {})["profile_steps"] = options.profile
        config = _configuration(options)
        if (options.print_config or options.dry_run) and own_rank() != "0":
            return 0  # rank 0 prints
        if options.print_config:
            print(to_yaml(config), end="")
            return 0
        _require_shards(config, is_new=not (Path(options.run_dir) / CONFIG_NAME).is_file())
        if options.dry_run:
            _dry_run(options, config)
            return 0
    run_dir = Path(options.run_dir)
    with StopSignals() as stop:  # before the seconds that torch takes to import
        with loading("PyTorch and DeepSpeed"):
            from megabert.training.pretrain import pretrain

        with before_ranks_meet():
            initial = _initial(config, run_dir)
        is_done = pretrain(config, run_dir, initial=initial, device=options.device, stop=stop)
    return 0 if is_done else EXIT_STOPPED


def _require_shards(config: RunConfig, *, is_new: bool) -> None:
    """Refuse shards that are missing or do not fit before the seconds that torch takes.

    Ranks of a job do so once they have met, and a run that has begun once its checkpoints are known.
    """
    if find_launcher() is not None:
        return
    from megabert.tokens.shards.recipe_fit import refuse_missing_lengths, refuse_unfit_shards
    from megabert.tokens.shards.shard_set import ShardSet

    if is_new:
        refuse_missing_lengths(config)
    shards = [ShardSet.open(phase_data(config, phase), "train") for phase in config.phases]
    if is_new:
        refuse_unfit_shards(config, shards)


def _dry_run(options: Namespace, config: RunConfig) -> None:
    from megabert.tooling.planning.preflight import describe_run, open_dry_run

    run_dir = Path(options.run_dir)
    ranks = options.world_size if options.world_size is not None else int(describe_rank()["WORLD_SIZE"])
    device = None if options.device == "auto" else options.device
    initial = _initial(config, run_dir)
    dry_run = open_dry_run(config, run_dir, initial=initial, world_size=ranks, gpu=options.gpu, device=device)
    print(describe_run(dry_run, run_dir))


def _configuration(options: Namespace) -> RunConfig:
    """Resolve the run. Its own record wins over the sources of its weights, which may be gone by now."""
    own = Path(options.run_dir) / CONFIG_NAME
    fork = last_said([*map(read_yaml, options.config), options.fields], "fork")
    recorded = own if fork is None or own.is_file() else split_fork(str(fork))[0] / CONFIG_NAME
    recipe = options.recipe
    if recipe is None:
        recipe = "debug" if fork is None else str(recorded)
    config = load_run_config(recipe, options.config, options.fields, model_of=partial(_model_of, recorded=recorded))
    refuse_idle([flag.path for flag in options.field_flags], to_dict(config), RUN_NEEDS)
    return config


def _model_of(source: str, recorded: Path) -> dict[str, Any]:
    """Return the model's fields as the run has recorded them, or else as the source of its weights has them."""
    if recorded.is_file():
        return to_dict(merge_layers(RunConfig, recorded).model)
    from megabert.downstream.export.sources import open_source

    sizes = to_dict(open_source(source).model)
    # Which generator is added to a masked LM is the recipe's to say.
    not_taken = (*FIELDS_OF_TRAINING, *(GENERATOR_CHOICES if sizes["generator_size"] is None else ()))
    return {name: value for name, value in sizes.items() if name not in not_taken}


def _initial(config: RunConfig, run_dir: Path) -> "InitialWeights | None":
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

    shards = ShardSet.open(phase_data(config, config.phases[0]), "train")
    new = load_tokenizer(shards.tokenizer_dir)
    transfer = plan_transfer(source.load_tokenizer(), new)
    read = source.weights.read
    weights = replace(source.weights, tokenizer_sha256=new.sha256, read=lambda: transfer_vocabulary(read(), transfer))
    sizes = replace(source.model, vocab_size=new.vocab_size)
    return replace(source, model=sizes, tokenizer_dir=shards.tokenizer_dir, weights=weights)
