"""What joining a world costs a rank, counted: sockets, keys of the store, seconds, on up to 32 ranks of this machine.

    python -m benchmarks.scaling.start_up --ranks 2 8 32

Ranks are forked from a process that has imported everything, so that the seconds are those of meeting, of building the
engine and of three steps of a tiny BERT, on however few cores there are. The counts do not depend on the machine.
"""

import argparse
import gc
import multiprocessing
import os
import socket
import time
from pathlib import Path
from typing import Any

import deepspeed  # noqa: F401 (imported once, before the ranks are forked)
import torch

from megabert.data.batch import probe_batch
from megabert.distributed.process_group import World, distributed_world
from megabert.engine.build import build_engine
from megabert.models.build import build_model, initialize
from megabert.optim import StepSettings, build_optimizer
from megabert.settings.config.deepspeed import derive_deepspeed
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OptimizerConfig

MODEL = ModelConfig(preset="tiny", vocab_size=1024)
STEPS = 3


def main() -> None:
    """Print a row for each world."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 32])
    print("| ranks | connections | sockets of a rank | keys of the store | s to meet | s to build | s a step |")
    print("|---|---|---|---|---|---|---|")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # or every collection in a rank would copy the parent's pages
    for lazily in (False, True):
        for ranks in arguments.ranks:
            sockets, keys, *seconds = _measure(ranks, lazily=lazily)
            shown = " | ".join(f"{value:.1f}" for value in seconds)
            kind = "as needed" if lazily else "full mesh"
            print(f"| {ranks} | {kind} | {sockets:.0f} | {keys:.0f} | {shown} |", flush=True)


def _measure(ranks: int, *, lazily: bool) -> list[float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    processes = [context.Process(target=_rank, args=(rank, ranks, port, lazily, results)) for rank in range(ranks)]
    for process in processes:
        process.start()
    figures: list[float] = results.get()
    for process in processes:
        process.join()
    return figures


def _rank(rank: int, ranks: int, port: int, lazily: bool, results: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCH_GLOO_LAZY_INIT": str(int(lazily))}
    started = time.perf_counter()
    with distributed_world("cpu") as world:
        met = time.perf_counter()
        engine = _tiny_engine(world)
        built = time.perf_counter()
        batch = probe_batch(tokens=256, length=32)
        for _ in range(STEPS):
            engine.backward(engine.forward(batch).mlm_loss_sum / 1000, is_last=True)
            engine.step(StepSettings(lr=1e-3))
        engine.settle()
        stepped = time.perf_counter()
        world.gather(rank)
        figures = [_sockets(), world.store.num_keys(), met - started, built - met, (stepped - built) / STEPS]
        most = [max(values) for values in zip(*world.gather(figures), strict=True)]
        if world.is_main:
            results.put(most)


def _tiny_engine(world: World) -> Any:
    model = build_model(MODEL)
    initialize(model, 1)
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig())
    return build_engine(model, optimizer, derive_deepspeed("zero1", precision="fp32", max_grad_norm=1.0), world)


def _sockets() -> int:
    """Return how many of this process's files are sockets."""
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        try:
            count += file.readlink().name.startswith("socket:")
        except FileNotFoundError:  # the listing's own
            continue
    return count


if __name__ == "__main__":
    main()
