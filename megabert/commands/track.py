"""Show a run in trackio or wandb.

The command copies the rows of metrics.jsonl until the run has ended, as --logging.trackers does from within a run;
nothing leaves the machine unless --mode online is given. Stopped at any time, it can be started again.

Arguments:
  RUN             run folder
  tracker         library, installed by megabert[trackio,wandb]
  --project NAME  project that shows the run (default: megabert)
  --mode          keep the rows on this machine, or send them over the network (default: offline)

Example:
  megabert track runs/large wandb --mode online
"""

from argparse import Namespace
from pathlib import Path

from megabert.settings.command_line.parser import Parser


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("run_dir", type=Path, metavar="RUN")
    parser.add_argument("tracker", choices=("trackio", "wandb"))
    parser.add_argument("--project", dest="tracker_project", default="megabert")
    parser.add_argument("--mode", dest="tracker_mode", choices=("offline", "online"), default="offline")


def run(options: Namespace) -> None:
    """Copy the rows until the run has ended."""
    from megabert.observability.follower import follow_run
    from megabert.settings.config.loading import merge_layers
    from megabert.settings.config.run import LoggingConfig
    from megabert.tooling.reports.watch import describe_verdict
    from megabert.training.run.folder import read_config
    from megabert.training.run.status import check_status

    run_dir: Path = options.run_dir
    read_config(run_dir)
    fields = {"tracker_project": options.tracker_project, "tracker_mode": options.tracker_mode}
    logging = merge_layers(LoggingConfig, fields)
    follow_run(options.tracker, run_dir, logging, is_over=lambda: describe_verdict(check_status(run_dir)) != "running")
    print(f"{options.tracker} has the rows of {run_dir}")
