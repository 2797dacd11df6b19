"""Print the needs of a recipe: memory, days, disk, data.

It prints memory by ZeRO stage and token budget, FLOPs, days per phase, disk of the checkpoints, passes over the corpus.

Fields of the configuration are flags by their path, as for megabert pretrain. Times follow from datasheets and one
fitted number, the share of the peak while computing; docs/before_a_run.md compares them with published systems. With
--measured they follow from the rates that megabert doctor --prove has measured on the machines themselves.

Arguments:
  --nodes N           machines (default: 1)
  --gpus M            GPUs per node (default: 8; v100: 16)
  --hours H           also say how many steps fit into H hours
  --instances N       rows of a phase's shards, if there are none yet
  --efficiency SHARE  share of the peak while computing, in fp8 the share in bf16 (default: as published or measured)
  --measured FILE     take the rates of machines from here (doctor --prove --save FILE); nodes and GPUs by default too
  --json              print the figures as JSON

Examples:
  megabert estimate --recipe bert_large --nodes 8 --gpus 8 --gpu h200
  megabert estimate --recipe bert_base --gpu a100 --hours 24 --data.path data --engine zero2
  megabert estimate --recipe bert_large --measured proof.json --nodes 16
"""

import json
from argparse import Namespace
from pathlib import Path

from megabert.foundation.errors import ConfigError
from megabert.observability.flops import GPUS, gpu_by_name
from megabert.settings.command_line.parser import Parser, bounded, number, positive
from megabert.settings.config.loading import load_run_config, to_dict
from megabert.settings.config.needs import RUN_NEEDS, refuse_idle
from megabert.settings.config.run import RunConfig
from megabert.tooling.measurements.measured import read_measured

IDLE = (
    *("name", "seed", "fork", "init_from", "init_tiling", "init_vocabulary"),
    *("logging", "watchdog", "rollback", "ops", "validation"),
)
"""Fields of a run that have no effect on its needs."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_recipe("what to train")
    parser.add_argument("--gpu", default="h200", metavar="KIND", help=f"GPU: {', '.join(GPUS)} (default: h200)")
    parser.add_argument("--nodes", type=positive)
    parser.add_argument("--gpus", type=positive)
    parser.add_argument("--hours", type=bounded(number, above=0))
    parser.add_argument("--instances", type=positive)
    parser.add_argument("--efficiency", type=bounded(number, above=0, most=1))
    parser.add_argument("--measured", type=Path)
    parser.add_rule("--measured", excludes=["--gpu", "--efficiency"])
    parser.add_argument("--json", action="store_true")
    job = ("recipe", "gpu", "nodes", "gpus", "measured", "hours")
    first = (*job, "data.path", "instances", "engine", "micro-batch-tokens", "json")
    parser.add_fields(RunConfig, first=first, without=IDLE)


def run(options: Namespace) -> None:
    """Estimate and print."""
    config = load_run_config(options.recipe, options.config, options.fields)
    refuse_idle(options.fields, to_dict(config), RUN_NEEDS)
    # A phase that has shards has their number of rows.
    if options.instances and (config.data.path or config.data.sources or all(phase.data for phase in config.phases)):
        named = "--data.path" if config.data.path else "data.sources" if config.data.sources else "phases.N.data"
        raise ConfigError(f"--instances has no effect with {named}, whose shards say it. Leave one of the two out.")
    gpu = gpu_by_name(options.gpu)
    from megabert.tooling.planning.estimate import estimate
    from megabert.tooling.planning.estimate_page import estimate_as_dict, render_estimate
    from megabert.tooling.planning.step_time import Cluster, measured_cluster

    measured = options.measured and read_measured(options.measured)
    if measured:
        cluster = measured_cluster(measured, nodes=options.nodes, gpus_per_node=options.gpus)
    else:
        cluster = Cluster(gpu=gpu, nodes=options.nodes or 1, gpus_per_node=options.gpus or gpu.gpus_per_node)
    needs = estimate(config, cluster, efficiency=options.efficiency, instances=options.instances, measured=measured)
    as_json = json.dumps(estimate_as_dict(needs, hours=options.hours), indent=2) if options.json else None
    print(as_json or render_estimate(needs, hours=options.hours))
