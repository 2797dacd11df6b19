"""A training step's CPU time now and at an earlier commit: whether a change for GPUs made CPUs slower.

    git worktree add BEFORE COMMIT
    python benchmarks/cpu/against_commit.py BEFORE [--pairs 15]

Forward and backward of one packed micro-batch, one thread, float32. Both trees take turns, step by step, each in a
process of its own; a ratio is of two neighbouring steps, in seconds of CPU time. The first line of each model compares
this tree with itself.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
SIZES = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 8000}
MODELS = {
    "modernbert 1,024": (SIZES | {"family": "modernbert", "intermediate_size": 656}, 1024),
    "bert 128": (SIZES | {"intermediate_size": 1024}, 128),
}
WORKER = """
import sys, time
import torch
torch.set_num_threads(1)
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig
from megabert.data.batch import probe_batch
from megabert.models.build import build_model, initialize
sizes, length = eval(sys.argv[1])
model = build_model(ModelConfig(**sizes), ops=OpsConfig())
initialize(model, 0)
batch = probe_batch(tokens=2048, length=length)
for _ in sys.stdin:
    begun = time.process_time()
    output = model(batch)
    (output.mlm_loss_sum + output.nsp_loss_sum).backward()
    print(time.process_time() - begun, flush=True)
"""


class Tree:
    """A process that takes steps with the code of one tree."""

    def __init__(self, folder: Path, case: tuple[dict[str, object], int]) -> None:
        command = [sys.executable, "-c", WORKER, repr(case)]
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        for _ in range(3):
            self.step()

    def step(self) -> float:
        """Return the CPU seconds of a step."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("step\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a worktree of the earlier commit")
    parser.add_argument("--pairs", type=int, default=15)
    args = parser.parse_args()
    for folder in (HERE, args.before):
        head = subprocess.run(
            ["git", "log", "-1", "--format=%h %s"], cwd=folder, capture_output=True, text=True, check=True
        )
        print("now:   " if folder == HERE else "before:", head.stdout.strip(), flush=True)
    for name, case in MODELS.items():
        for label, other in (("now / now", HERE), ("now / before", args.before.resolve())):
            now, then = Tree(HERE, case), Tree(other, case)
            pairs = [(now.step(), then.step()) for _ in range(args.pairs)]
            ratios = sorted(mine / theirs for mine, theirs in pairs)
            spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            seconds = statistics.median(mine for mine, _ in pairs)
            print(f"{name:<17} {label:<13} {spread}, {seconds:.2f} CPU s", flush=True)
            now.end()
            then.end()


if __name__ == "__main__":
    main()
