"""Measure the kernels' tile sizes on this device.

The file is for a run's ops.tile_sizes. Each launch of the recipe's ops is timed with the committed tile and with its
neighbours; the fastest tile whose results match the op's definition goes into the file. It ends after --minutes;
called again with the same file it does the rest. A run reads the file by --ops.tile_sizes FILE, on such a device and
with this version of Triton and megabert alone.

Arguments:
  --save FILE  the file of tile sizes; one of this device is continued
  --minutes M  no candidate is begun after so long (default: 10)
  --tokens N   packed tokens of a timed call (default: 32768)

Examples:
  megabert tune --recipe bert_large --save h100.json
  megabert pretrain --recipe bert_large --data.path data --ops.tile_sizes h100.json
"""

from argparse import Namespace
from pathlib import Path

from megabert.foundation.errors import ConfigError, KernelError
from megabert.foundation.files import check_saved_file
from megabert.foundation.text_tables import render_table
from megabert.settings.command_line.parser import Parser, bounded, number, whole
from megabert.settings.command_line.terminal import loading
from megabert.settings.config.loading import load_run_config


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_recipe("whose model and lengths")
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--minutes", type=bounded(number, above=0, most=1440), default=10.0)
    parser.add_argument("--tokens", type=bounded(whole, least=16, most=1 << 20), default=32_768)


def run(options: Namespace) -> None:
    """Tune and print a table."""
    config = load_run_config(options.recipe, options.config, {})
    check_saved_file(options.save, flag="--save")
    with loading("PyTorch"):
        import torch

        from megabert.engine.engine import DTYPES, resolve_precision
        from megabert.ops.backend import triton_obstacle
        from megabert.ops.proof.first_run import cases_of
        from megabert.ops.proof.tuning import tune
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    obstacle = triton_obstacle(device.type)
    if obstacle:
        raise KernelError(f"megabert tune: {obstacle}. Call it on a machine with a GPU.", see="a-backend-cannot-run")
    dtype = DTYPES[resolve_precision(config.precision, device)]
    model = config.model.with_pieces(config.shards.planned_vocab_size)
    lengths = sorted({phase.max_seq_length for phase in config.phases})
    models = [model] if model.generator_size is None else [model, model.generator()]
    cases = cases_of(models, lengths, dtype)
    if config.precision == "fp8":
        cases += [("fp8_casts", shapes) for op, shapes in cases if "gelu" in op]
    rows = []
    try:
        for found in tune(cases, device, options.save, tokens=options.tokens, minutes=options.minutes):
            gain = 100 * (1 - found.best_ms / found.committed_ms)
            sizes = ["x".join(map(str, tile)) for tile in (found.committed, found.best)]
            times = [f"{ms:.3f}" for ms in (found.committed_ms, found.best_ms)]
            rows.append((found.name, *sizes, *times, f"{gain:.1f}", len(found.times)))
    except torch.OutOfMemoryError as error:
        message = (
            f"--tokens {options.tokens}: a timed call does not fit into the memory of {device}. Give fewer tokens."
        )
        raise KernelError(f"{message} The launches measured before are kept.") from error
    if not options.save.exists():
        raise ConfigError(f"--minutes {options.minutes:g}: over before the first launch was measured. Give it more.")
    headers = ("launch", "committed", "best", "ms", "best ms", "gain %", "tried")
    print(render_table(rows, headers=headers, align="lllrrrr"))
    print(f"{options.save}: {len(rows)} launches measured now. Use it: --ops.tile_sizes {options.save}")
