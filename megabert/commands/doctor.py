"""Check whether this machine, or this job, is fit to train.

It checks versions, devices, limits, the run folder's disk, fused ops, all-reduces and SLURM. Alone it starts one
process per GPU (two without) and has them all-reduce. As tasks of srun, or under torchrun, it asks the ranks of that
job, and names the node where something fails. Exit code 0: fit; 2: something that training needs fails; 75: a SIGTERM
or SIGUSR1 came in between.

With --prove it also holds every op, collective, engine and checkpoint against a reference, on all ranks and in the
shapes and the precision of a run, and measures the rates that decide its time: minutes before a week. It takes the
flags of megabert pretrain. With --save it writes the rates for megabert estimate --measured.

Arguments:
  --quick        only what can differ between nodes and starts
  --json         print the findings as JSON
  --run-dir DIR  where a run would write (default: runs); need not exist
  --prove        also hold ops, collectives, engines and a checkpoint against references, and measure rates
  --save FILE    --prove: write findings and rates as JSON, for megabert estimate --measured

Examples:
  megabert doctor
  megabert doctor --device cuda --run-dir runs/large --json
  megabert doctor --prove --recipe bert_base --data.path data --save proof.json
  torchrun --nproc_per_node 8 -m megabert doctor --prove --save proof.json
  srun --ntasks-per-node=8 megabert doctor --quick --run-dir runs/large
"""

import json
from argparse import Namespace
from pathlib import Path

from megabert.distributed.environments import before_ranks_meet, describe_rank, own_rank
from megabert.foundation.errors import EXIT_STOPPED, MegabertError
from megabert.foundation.files import atomic_write, check_saved_file
from megabert.settings.command_line.parser import Parser, output_path, refuse_flags
from megabert.settings.command_line.terminal import loading
from megabert.settings.config.loading import load_run_config
from megabert.settings.config.run import RunConfig
from megabert.training.recovery.stop_signals import StopSignals

IDLE = (
    *("name", "seed", "fork", "init_from", "init_tiling", "init_vocabulary", "average", "shards"),
    *("logging", "watchdog", "rollback", "validation", "checkpoint"),
)
"""Fields of a run that no check depends on."""
OWN = ("quick", "prove", "json", "device", "run-dir")
"""Flags that need no run to be planned."""
EXIT_UNFIT = 2
"""Exit code of a verdict that is not fit, as of a ConfigError: something of the machine or the job must be changed."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_device()
    parser.add_argument("--run-dir", type=output_path, default=Path("runs"))
    parser.add_argument("--prove", action="store_true")
    parser.add_argument("--save", type=output_path)
    parser.add_rule("--save", needs=["--prove"])
    parser.add_recipe("--prove: what would be trained")
    parser.add_rule("--recipe", needs=["--prove"])
    parser.add_rule("--config", needs=["--prove"])
    parser.add_rule("--quick", excludes=["--prove"])
    fields = ("recipe", "data.path", "precision", "engine", "micro-batch-tokens", "save")
    parser.add_fields(RunConfig, first=(*OWN, *fields), without=IDLE)


def run(options: Namespace) -> int:
    """Examine and print; the exit code says whether a run can start."""
    config: RunConfig | None = None
    refusal: MegabertError | None = None
    with before_ranks_meet():
        if options.prove:
            config = load_run_config(options.recipe, options.config, options.fields)
        else:
            refuse_flags(options.given - {f"--{name}" for name in OWN}, options.given, "without --prove")
        if options.save and own_rank() == "0":
            try:
                check_saved_file(options.save, flag="--save")
            except MegabertError as error:
                if describe_rank()["WORLD_SIZE"] == "1":
                    raise
                refusal = error  # raised once the ranks have met: the others would wait for this one
    with StopSignals("the checks") as stop:
        with loading("PyTorch"):
            from megabert.tooling.doctor.examination import examine
            from megabert.tooling.doctor.finding import failure, is_fit, render

        # A proof begins with what differs between nodes: on ranks that do not meet, nothing else can run.
        is_quick = options.quick or options.prove
        own = [failure("disk", str(refusal), "Name another file: --save.")] if refusal else []
        findings, measured = examine(options.run_dir, device=options.device, is_quick=is_quick, own=own), None
        if refusal:
            raise refusal
        # Every rank enters it, whether a signal has come to this one or not: the others would wait for it.
        if config is not None and is_fit(findings):
            from megabert.foundation.json_files import to_json
            from megabert.tooling.doctor.proof import prove

            proof = prove(config, options.run_dir, device=options.device, is_stopped=lambda: stop.received is not None)
            findings, measured = [*findings, *proof.findings], proof.measured and to_json(proof.measured)
    if own_rank() != "0":
        return 0  # rank 0 has the verdict; another rank's bad exit would end it before it is printed
    verdict = is_fit(findings)
    as_json = {"fit": verdict, "findings": [vars(finding) for finding in findings]}
    if options.prove:
        as_json["measured"] = measured
    text = json.dumps(as_json, indent=2)
    if options.save:
        atomic_write(options.save, text + "\n")
    print(text if options.json else render(findings), flush=True)
    if stop.received:
        return EXIT_STOPPED
    return 0 if verdict else EXIT_UNFIT
