"""How long training pauses for a checkpoint, and how long the checkpoint takes to be written.

BERT-Large's masters and moments (336 million parameters, 4 GB) on one rank, in as many vectors as the model has
parameters, on this machine's memory and disk. ``python benchmarks/bench_checkpoint.py [--preset base]
[--family modernbert --vocab-size 50368]``
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch

from megabert.models.build import build_model
from megabert.optim import Fragment
from megabert.settings.config.loading import load_run_config
from megabert.settings.config.model import ModelConfig
from megabert.training.run.checkpoint_writer import CheckpointWriter
from megabert.training.state import TrainerState

SAVES = 3


class SizedEngine:
    """What a checkpoint asks of an engine: the sizes of a real model, no DeepSpeed."""

    zero_stage, is_replicated, average = 1, False, None

    def __init__(self, family: str, preset: str, vocab_size: int) -> None:
        with torch.device("meta"):
            model = build_model(ModelConfig(family=family, preset=preset, vocab_size=vocab_size))
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.numel = sum(shape.numel() for shape in self.shapes.values())
        self.flat, *self.moments = (torch.rand(self.numel) for _ in range(3))
        self.optimizer = SimpleNamespace(moments=lambda flat: self.moments, state_names=("exp_avg", "exp_avg_sq"))
        self.fragments, position = [], 0
        for name, shape in self.shapes.items():
            self.fragments.append(Fragment(self.flat, position, name, 0, shape.numel()))
            position += shape.numel()

    def state(self) -> dict:
        return {}


def main() -> None:
    """Save a few times, as a run does, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="large", help="the model's size (default: large)")
    parser.add_argument("--family", default="bert", help="the model's family (default: bert)")
    parser.add_argument("--vocab-size", type=int, default=30_522, help="pieces (default: 30522)")
    parser.add_argument("--folder", default=None, help="where to write (default: the temporary folder)")
    options = parser.parse_args()
    if options.preset == "large" and os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 10 * 2**30:
        print("less than 10 GiB of memory are free: taking --preset base")
        options.preset = "base"
    engine = SizedEngine(options.family, options.preset, options.vocab_size)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows = measure(engine, Path(folder))
    print(
        f"{engine.numel:,} parameters, {12 * engine.numel / 2**30:.2f} GiB a checkpoint, {torch.get_num_threads()} "
        f"threads of {os.cpu_count()} cores"
    )
    print(f"{'save':<24}{'training pauses':>24}{'written in':>14}")
    for name, stall_s, write_s in rows:
        print(f"{name:<24}{stall_s:>22.2f} s{write_s:>12.2f} s")
    stall_s, write_s = (statistics.median(row[index] for row in rows[1:]) for index in (1, 2))
    print(f"median after the first: {stall_s:.2f} s of {stall_s + write_s:.2f} s ({write_s / stall_s:.0f} to 1)")


def measure(engine: SizedEngine, folder: Path) -> list[tuple[str, float, float]]:
    """Return name, stall and time of writing of each save."""
    world = SimpleNamespace(rank=0, size=1, is_main=True, device=torch.device("cpu"), gather=lambda value: [value])
    world.in_background = lambda: world
    writer = CheckpointWriter(
        load_run_config("debug"),
        engine=engine,
        world=world,
        run_dir=folder,
        status=SimpleNamespace(running=lambda **place: None),
        watchdog=SimpleNamespace(expect=lambda doing: None),
        state=TrainerState(),
    )
    rows = []
    for save in range(SAVES + 1):
        before = writer.stall_s
        writer.save(TrainerState(step=save))
        started = time.monotonic()
        error = writer.wait()
        assert error is None, error
        name = "first (allocates)" if save == 0 else f"{save + 1}"
        rows.append((name, writer.stall_s - before, time.monotonic() - started))
    return rows


if __name__ == "__main__":
    main()
