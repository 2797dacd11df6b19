"""Check whether this machine, or this job, is fit to train.

It checks versions, devices, limits, the run folder's disk, fused ops, all-reduces and SLURM. Alone it starts one
process per GPU (two without) and has them all-reduce. As a task of srun, or under torchrun, it asks the ranks of that
job, and names the node where something fails. Exit code 0: fit; 2: something that training needs fails; 75: a SIGTERM
or SIGUSR1 came in between.

Examples:
  megabert doctor
  megabert doctor --device cuda --run-dir runs/large --json
  srun --ntasks-per-node=8 megabert doctor --quick --run-dir runs/large
"""

import json
from argparse import Namespace
from pathlib import Path

from megabert.command_line.program import Parser
from megabert.command_line.terminal import loading
from megabert.distributed.environments import own_rank
from megabert.errors import EXIT_STOPPED
from megabert.training.recovery.stop_signals import StopSignals

EXIT_UNFIT = 2
"""Exit code of a verdict that is not fit, as of a ConfigError: something of the machine or the job must be changed."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("--quick", action="store_true", help="only what can differ between nodes and starts")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_device()
    text = "where a run would write (default: runs); need not exist"
    parser.add_argument("--run-dir", type=Path, default=Path("runs"), metavar="DIR", help=text)


def run(options: Namespace) -> int:
    """Examine, print, and tell by the exit code."""
    with StopSignals("the checks") as stop:
        with loading("PyTorch"):
            from megabert.doctor.examination import examine
            from megabert.doctor.finding import is_fit, render

        findings = examine(options.run_dir, device=options.device, is_quick=options.quick)
    if own_rank() != "0":
        return 0  # rank 0 has the verdict; another rank's bad exit would end it before it is printed
    verdict = is_fit(findings)
    as_json = {"fit": verdict, "findings": [vars(finding) for finding in findings]}
    print(json.dumps(as_json, indent=2) if options.json else render(findings), flush=True)
    if stop.received:
        return EXIT_STOPPED
    return 0 if verdict else EXIT_UNFIT
