"""Train a BERT on instance shards, or resume a run.

Every field of the configuration is a flag by its path; precedence: default < recipe < --config files < flags. N is the
number of an element, from 0: --phases.0.steps 100. Hyphens and underscores are both read.

The same command resumes the run that --run-dir holds. Ctrl-C, SIGTERM or SIGUSR1 to any rank: all ranks save between
two steps and exit with 75; RUN/status.json says so if a launcher hides the code.

Arguments:
  --run-dir DIR    folder of the run (default: runs/run)
  --world-size N   ranks that --dry-run plans for (default: the launcher's, or 1)
  --gpu KIND       GPU that --dry-run plans for, as for megabert estimate (default: this machine's)
  --profile STEPS  record these steps, N or N-M, with torch.profiler into RUN/profile (rank 0)

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
from pathlib import Path

from megabert.distributed.environments import before_ranks_meet, describe_rank, find_launcher, own_rank
from megabert.downstream.run_settings import CONFIG_NAME, initial_weights, resolve_run
from megabert.foundation.errors import EXIT_STOPPED
from megabert.settings.command_line.parser import Parser, positive, refuse_flags
from megabert.settings.command_line.terminal import loading
from megabert.settings.config.loading import phase_data, to_yaml
from megabert.settings.config.run import RunConfig
from megabert.training.recovery.stop_signals import StopSignals


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_recipe("what to train", default=None, about="default: debug; with --fork that run's configuration")
    parser.add_argument("--run-dir", default="runs/run")
    parser.add_device()
    parser.add_stops(dry_run="check configuration and data, show the plan")
    parser.add_argument("--world-size", type=positive)
    parser.add_argument("--gpu")
    parser.add_argument("--profile")
    parser.add_rule("--world-size", needs=["--dry-run"])
    parser.add_rule("--gpu", needs=["--dry-run"])
    parser.add_rule("--profile", excludes=["--logging.profile-steps"])
    phase = ("phases.N.steps", "phases.N.global-batch-size", "phases.N.learning-rate")
    machine = ("engine", "precision", "micro-batch-tokens")
    first = ("recipe", "data.path", "run-dir", *phase, *machine, "seed", "init-from", "dry-run")
    sections = ("data", "phases.N", "", "model", "optimizer", "average", "checkpoint", "validation", "logging", "ops")
    parser.add_fields(RunConfig, first=first, sections=sections)


def run(options: Namespace) -> int:
    """Resolve the configuration, train."""
    run_dir = Path(options.run_dir)
    with before_ranks_meet():
        if options.device == "cpu":
            refuse_flags(["--gpu"], options.given, "with --device cpu")
        if options.profile is not None:
            options.fields.setdefault("logging", {})["profile_steps"] = options.profile
        config = resolve_run(run_dir, options.recipe, options.fields, files=options.config)
        if (options.print_config or options.dry_run) and own_rank() != "0":
            return 0  # rank 0 prints
        if options.print_config:
            print(to_yaml(config), end="")
            return 0
        _require_shards(config, is_new=not (run_dir / CONFIG_NAME).is_file())
        if options.dry_run:
            _dry_run(options, config)
            return 0
    with StopSignals() as stop:  # before the seconds that torch takes to import
        with loading("PyTorch and DeepSpeed"):
            from megabert.training.pretrain import pretrain

        with before_ranks_meet():
            initial = initial_weights(config, run_dir)
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
    shards = [[ShardSet.open(folder) for folder in phase_data(config, phase).values()] for phase in config.phases]
    if is_new:
        refuse_unfit_shards(config, shards)


def _dry_run(options: Namespace, config: RunConfig) -> None:
    from megabert.tooling.planning.dry_run import open_dry_run
    from megabert.tooling.planning.preflight import describe_run

    run_dir = Path(options.run_dir)
    ranks = options.world_size if options.world_size is not None else int(describe_rank()["WORLD_SIZE"])
    device = None if options.device == "auto" else options.device
    initial = initial_weights(config, run_dir)
    dry_run = open_dry_run(config, run_dir, initial=initial, world_size=ranks, gpu=options.gpu, device=device)
    print(describe_run(dry_run, run_dir))
