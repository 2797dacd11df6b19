"""Starting, watching and killing real runs, as a user's shell would."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from forked.client import environment_of_commands, run_command

BIN = Path(sys.executable).parent

# Two narrow layers and a few steps; dropout on, every step logged.
TINY = {
    "model.preset": "tiny",
    "model.hidden_size": 32,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "model.hidden_dropout_prob": 0.1,
    "model.attention_probs_dropout_prob": 0.1,
    "phases.0.max_seq_length": 64,
    "phases.0.steps": 8,
    "phases.0.global_batch_size": 12,
    "phases.1.max_seq_length": 128,
    "phases.1.steps": 5,
    "phases.1.global_batch_size": 7,
    "micro_batch_tokens": 512,
    "checkpoint.every_steps": 3,
    "validation.every_steps": 4,
    "validation.max_instances": 40,
    "logging.every_steps": 1,
}


@dataclass
class Run:
    """One command line of ``megabert pretrain`` and its folder.

    Where the launcher and the process are not what is tested, it runs in forks of a process that has imported
    everything: torch and DeepSpeed take seconds to import, in each rank and in each launcher.
    """

    run_dir: Path
    data: Path
    ranks: int = 1
    launcher: str = "forked"
    """``forked``, ``torchrun``, ``deepspeed``, or ``none``: ``python -m``, which also starts what is ``forked``."""
    flags: dict[str, object] = field(default_factory=dict)
    recipe: str | None = "debug"
    module: str = "megabert"
    fault: str = ""
    """A function of ``integration/programs/faults.py``, or several: what goes wrong."""
    output_path: Path | None = None

    def __post_init__(self) -> None:
        self.output_path = self.output_path or self.run_dir.with_suffix(".out")
        self.module = "integration.programs.faults" if self.fault else self.module

    def words(self) -> list[str]:
        """Return the arguments of the program."""
        flags = {**TINY, "data.path": self.data, "run-dir": self.run_dir, **self.flags}
        arguments = [*filter(None, [self.fault]), "pretrain", *(["--recipe", self.recipe] if self.recipe else [])]
        for name, value in flags.items():
            arguments += [f"--{name}", str(value)] if value is not None else []
        return arguments

    def command(self) -> list[str]:
        """Return the words of the command."""
        if self.ranks == 1:
            return [sys.executable, "-m", self.module, *self.words()]
        assert self.launcher in ("deepspeed", "torchrun"), f"{self.ranks} ranks need a launcher, not {self.launcher}"
        if self.launcher == "deepspeed":
            port = ["--master_port", str(20000 + os.getpid() % 20000)]
            count = ["--num_accelerators", str(self.ranks)]
            return [str(BIN / "deepspeed"), *count, *port, "--module", self.module, *self.words()]
        torchrun = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(self.ranks)]
        return [sys.executable, "-m", *torchrun, "-m", self.module, *self.words()]

    def start(self) -> subprocess.Popen:
        """Start in the background, output to ``RUN.out``."""
        self.run_dir.parent.mkdir(parents=True, exist_ok=True)
        with self.output_path.open("a") as output:
            return subprocess.Popen(
                self.command(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment_of_commands(),
                start_new_session=True,
            )

    def finish(self, timeout_s: float = 240) -> int:
        """Run to the end and return the exit code."""
        if self.launcher == "forked":
            self.run_dir.parent.mkdir(parents=True, exist_ok=True)
            return run_command(self.module, self.words(), self.output_path, ranks=self.ranks, timeout_s=timeout_s)
        process = self.start()
        try:
            return process.wait(timeout_s)
        finally:
            kill_everything(process)

    def finish_well(self) -> list[dict]:
        """Run to the end, successfully, and return the metrics' rows."""
        code = self.finish()
        assert code == 0, f"exit {code}:\n{self.output[-6000:]}"
        return self.rows()

    @property
    def output(self) -> str:
        return self.output_path.read_text()

    def rows(self) -> list[dict]:
        """Return the rows of metrics.jsonl, a cut last line left out."""
        path = self.run_dir / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def losses(self) -> dict[int, float]:
        """Return the training loss of each step."""
        return {row["step"]: row["train/loss"] for row in self.rows() if "train/loss" in row}

    def held_out_rows(self) -> list[dict]:
        """Return the rows of the validations."""
        return [row for row in self.rows() if "eval/loss" in row]

    def wait_for_step(self, step: int, process: subprocess.Popen, timeout_s: float = 120) -> None:
        """Return once a step was logged (0: once the first checkpoint is complete)."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if step == 0 and (self.run_dir / "checkpoints" / "latest").exists():
                return
            if step > 0 and any(row["step"] >= step for row in self.rows()):
                return
            assert process.poll() is None, f"ended early, exit {process.returncode}:\n{self.output[-4000:]}"
            time.sleep(0.02)
        raise AssertionError(f"step {step} was not reached in {timeout_s} s:\n{self.output[-4000:]}")

    def wait_for_signal_handlers(self, process: subprocess.Popen, timeout_s: float = 60) -> None:
        """Return once the process imports torch, which takes seconds and comes after `StopSignals`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if "/libtorch" in Path(f"/proc/{process.pid}/maps").read_text():
                return
            time.sleep(0.01)
        raise AssertionError(f"no torch in {timeout_s} s:\n{self.output[-4000:]}")


def finished(*arguments: object, **options: object) -> Run:
    """Return a run that has come to its end; the arguments are those of `Run`."""
    run = Run(*arguments, **options)
    run.finish_well()
    return run


def assert_equal_runs(run: Run, uninterrupted: Run) -> None:
    """Compare two complete runs: every training loss and every validation, bit for bit."""
    assert run.losses() == uninterrupted.losses()
    assert run.held_out_rows() == uninterrupted.held_out_rows()


def ranks_of(process: subprocess.Popen) -> list[psutil.Process]:
    """Return the ranks below a launcher (or the process itself), in order of rank."""
    by_rank = {}
    for candidate in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        command = candidate.cmdline()
        if "pretrain" in command and "torch.distributed.run" not in command and "--module" not in command:
            by_rank[int(candidate.environ().get("RANK", 0))] = candidate
    return [by_rank[rank] for rank in sorted(by_rank)]


def kill_everything(process: subprocess.Popen) -> None:
    """Kill -9 a launcher and all that descends from it."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    for member in [*family, process]:
        try:
            os.kill(member.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(30)
    psutil.wait_procs(family, timeout=30)
