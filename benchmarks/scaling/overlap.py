"""Step time against the time that collectives take: is it the larger of both, or their sum?

    python -m benchmarks.scaling.overlap            # 2 and 4 ranks, two minutes; prints a Markdown table
    python -m benchmarks.scaling.overlap --slower 8 --plot docs/overlap.svg

The engine is the real one, over gloo; what it talks to is made. Layers sleep instead of computing, 2 ms forward and
4 ms backward, so that the result does not depend on how busy this machine is. Every collective occupies a link for its
bytes, one after the other, as NCCL's stream does; whoever waits for it sleeps until its turn is over. So nothing here
is a statement about a network: it shows in which order the engine computes, sends and waits.

The last column is ``overlap_comm: false``, and weights that are waited for in the step: so behaves DeepSpeed's stage 1.
"""

import argparse
import contextlib
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.scaling.overlap_plot import Measurement, save_plot

LAYERS, WIDTH = 12, 128
FORWARD_S, BACKWARD_S = 0.002, 0.004
COMPUTE_S = LAYERS * (FORWARD_S + BACKWARD_S)
WARM_UP, STEPS = 1, 3
SHARES = (0.0, 0.5, 1.0, 2.0, 3.0)
"""Time of all collectives of a step as a share of its compute."""


class Link:
    """One collective after the other, each for its bytes."""

    def __init__(self, s_per_byte: float) -> None:
        self.s_per_byte = s_per_byte
        self.free_at = 0.0
        self.sent_bytes = 0

    def send(self, tensor: Tensor) -> float:
        """Return when the collective that begins now will be over."""
        size = tensor.numel() * tensor.element_size()
        self.sent_bytes += size
        self.free_at = max(self.free_at, time.perf_counter()) + size * self.s_per_byte
        return self.free_at


class DelayedWork:
    """A collective's handle, done when gloo has done it and the link's time is over."""

    def __init__(self, work: Any, over_at: float) -> None:
        self._work, self._over_at = work, over_at

    def wait(self) -> None:
        """Sleep until it is over."""
        self._work.wait()
        time.sleep(max(0.0, self._over_at - time.perf_counter()))


@contextlib.contextmanager
def delayed(link: Link) -> Iterator[None]:
    """Let collectives of the default group take the link's time inside."""

    def wrap(original: Callable[..., Any], whole: int) -> Callable[..., Any]:
        def call(*tensors: Tensor, async_op: bool = False, **options: Any) -> DelayedWork | None:
            if "group" in options:
                return original(*tensors, async_op=async_op, **options)  # type: ignore[no-any-return]
            over_at = link.send(tensors[whole])
            work = DelayedWork(original(*tensors, async_op=True), over_at)
            return work if async_op else work.wait()

        return call

    with contextlib.ExitStack() as stack:
        for name, whole in (("reduce_scatter_tensor", 1), ("all_gather_into_tensor", 0), ("all_reduce", 0)):
            stack.enter_context(mock.patch.object(dist, name, wrap(getattr(dist, name), whole)))
        yield


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slower: float) -> Tensor:
        ctx.slower = slower
        time.sleep(slower * FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        time.sleep(ctx.slower * BACKWARD_S)
        return gradient, None


class SleepingLayer(nn.Module):
    """A layer of 33,000 parameters that takes its time."""

    def __init__(self, slower: float) -> None:
        super().__init__()
        self.slower = slower
        self.dense = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return _Sleep.apply(x, self.slower) + self.dense(x)[:, :WIDTH]  # type: ignore[no-any-return, no-untyped-call]


class SleepingModel(nn.Module):
    """Layers and nothing else."""

    def __init__(self, slower: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SleepingLayer(slower) for _ in range(LAYERS))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return a loss."""
        x = x * self.scale
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--plot", type=Path, help="also draw the table into this SVG")
    parser.add_argument("--slower", type=float, default=1.0, help="factor on all times, for a busy machine (default 1)")
    arguments = parser.parse_args()
    compute_s = arguments.slower * COMPUTE_S
    worlds: dict[int, list[Measurement]] = {}
    print(f"Compute of a step: {1000 * compute_s:.0f} ms. Medians of {STEPS} steps, in ms.\n")
    print("| ranks | collectives | max | sum | step, overlapped | above max | step, one after the other |")
    print("|---|---|---|---|---|---|---|")
    for ranks in arguments.ranks:
        columns = [_measure(ranks, is_overlapped, arguments.slower) for is_overlapped in (True, False)]
        for share, overlapped, serial in zip(SHARES, *columns, strict=True):
            collectives = 1000 * share * compute_s
            compute, base = 1000 * compute_s, 1000 * columns[0][0]
            row = Measurement(collectives=collectives, overlapped=1000 * overlapped, serial=1000 * serial)
            worlds.setdefault(ranks, []).append(row)
            print(
                f"| {ranks} | {collectives:.0f} | {max(collectives, compute):.0f} | {collectives + compute:.0f} | "
                f"{1000 * overlapped:.0f} | {1000 * overlapped - max(collectives, base):.0f} | {1000 * serial:.0f} |",
                flush=True,
            )
    if arguments.plot is not None:
        save_plot(arguments.plot, worlds)


def _measure(ranks: int, is_overlapped: bool, slower: float) -> list[float]:
    """Return the median step time for each share."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = [
        context.Process(target=_rank, args=(rank, ranks, port, is_overlapped, slower, results)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    medians: list[float] = results.get()
    for process in processes:
        process.join()
    return medians


def _rank(rank: int, ranks: int, port: int, is_overlapped: bool, slower: float, results: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    from megabert.distributed.process_group import distributed_world
    from megabert.engine.build import build_engine
    from megabert.optim import StepSettings, build_optimizer
    from megabert.settings.config.deepspeed import REQUIRED
    from megabert.settings.config.run import OptimizerConfig

    config: dict[str, Any] = {key: value for key, value in REQUIRED.items() if "." not in key}
    config |= {"data_types": {"grad_accum_dtype": "fp32"}, "gradient_clipping": 1.0, "steps_per_print": 10**9}
    zero = {"stage": 1, "overlap_comm": is_overlapped, "reduce_bucket_size": WIDTH * 2 * WIDTH}
    with distributed_world("cpu") as world:
        torch.manual_seed(0)
        model = SleepingModel(slower)
        optimizer = build_optimizer(model.named_parameters(), OptimizerConfig())
        engine = build_engine(model, optimizer, {**config, "zero_optimization": zero}, world)

        def step() -> None:
            engine.backward(engine.forward(torch.ones(4, WIDTH)), is_last=True)
            engine.step(StepSettings(lr=0.0))
            if not is_overlapped:
                engine.settle()

        link = Link(0.0)
        with delayed(link):
            for _ in range(WARM_UP):
                step()
            link.sent_bytes = 0
            step()
            size, medians = link.sent_bytes, []
            for share in SHARES:
                link.s_per_byte = share * slower * COMPUTE_S / size
                times = []
                for number in range(1 + STEPS):
                    started = time.perf_counter()
                    step()
                    times += [time.perf_counter() - started] if number else []
                medians.append(statistics.median(times))
            engine.settle()
        if world.is_main:
            results.put(medians)


if __name__ == "__main__":
    main()
