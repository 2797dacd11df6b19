"""Shell scripts, with stand-ins for the programs that they call; `make lint` has bash and shellcheck read them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from megabert.tooling.doctor.probe import COLLECTIVE_S, MEETING_S

ROOT = Path(__file__).parents[2]
JOB = {
    **{"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "20000", "SLURM_JOB_NODELIST": "node[1-20000]"},
    **{"SLURM_SUBMIT_DIR": str(ROOT), "CHECK": ""},
}


def run(*command: object) -> subprocess.CompletedProcess:
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def run_with_stubs(tmp_path: Path, *command: str, stubs: dict[str, str] | None = None, **settings: str):
    """Run a script with stand-ins for megabert, SLURM's commands, and ``stubs``, shell code by the program's name."""
    programs = tmp_path / "bin"
    programs.mkdir()
    shown = dict.fromkeys(("srun", "scontrol"), f'echo "$0 $*" >>{tmp_path}/called')
    for name, script in {
        "megabert": 'echo "$@"',
        "sbatch": '[ "$1" != --parsable ] || echo 7',
        **shown,
        **(stubs or {}),
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "VENV": str(tmp_path), **settings}
    return subprocess.run(["bash", *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("settings", "planned"),
    [
        ({}, "--world-size 64 --gpu h200"),
        ({"SUBMIT_OPTIONS": "-N2 --partition=long --ntasks-per-node 4", "GPU": "a100"}, "--world-size 8 --gpu a100"),
        ({"SUBMIT_OPTIONS": "--nodes=2-4 --ntasks=3", "DEVICE": "cpu"}, "--world-size 3 --device cpu"),
    ],
)
def test_login_node_plans_for_the_ranks_and_gpus_of_the_job(tmp_path, settings, planned):
    (tmp_path / "data" / "instances").mkdir(parents=True)
    settings = {"DATA": str(tmp_path / "data"), "CHECK": "yes", **settings}
    done = run_with_stubs(tmp_path, "slurm/pretrain_large.sh", "--seed", "7", **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"pretrain {planned} --recipe bert_large ")
    assert done.stdout.endswith("--seed 7 --dry-run\n")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_login_node_plans_a_fine_tuning_for_the_device_of_the_job(tmp_path, device):
    for name in ("glue", "model"):
        (tmp_path / name).mkdir()
    settings = {"FINETUNE_DATA": str(tmp_path / "glue"), "MODEL": str(tmp_path / "model"), "CHECK": "yes"}
    done = run_with_stubs(tmp_path, "slurm/finetune.sh", "--seeds", "2", DEVICE=device, **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"finetune --device {device} glue --model ")
    assert done.stdout.endswith("--seeds 2 --dry-run\n")


def test_check_of_the_chain_starts_nothing_inside_an_interactive_job(tmp_path):
    (tmp_path / "data" / "instances").mkdir(parents=True)
    job = {"SLURM_JOB_ID": "17", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "node1"}
    done = run_with_stubs(tmp_path, "slurm/submit_all.sh", DATA=str(tmp_path / "data"), CHECK="", **job)
    assert done.returncode == 0, done.stderr
    assert "--dry-run\n" in done.stdout
    assert done.stdout.endswith("pretrain  7\n")
    assert not (tmp_path / "called").exists(), "neither srun nor scontrol"


@pytest.mark.parametrize(("settings", "code"), [({}, 2), ({"INPUT": "x"}, 0)])
def test_chain_checks_the_build_before_it_submits_any_job(tmp_path, settings, code):
    stubs, data = {"megabert-data": 'echo "$@"'}, str(tmp_path / "data")
    done = run_with_stubs(tmp_path, "slurm/submit_all.sh", stubs=stubs, DATA=data, CHECK="", **settings)
    assert done.returncode == code, done.stderr
    assert ("prepare   7\n" in done.stdout, "pretrain  7\n" in done.stdout) == (not code, not code)
    assert ("neither INPUT nor CONFIG is set" in done.stderr) == bool(code)


def test_check_names_the_build_that_the_recipe_accepts(tmp_path):
    settings = {"RECIPE": "roberta_base", "DATA": str(tmp_path / "nowhere"), "CHECK": "yes"}
    done = run_with_stubs(tmp_path, "slurm/pretrain_large.sh", **settings)
    assert done.returncode == 2
    assert "sbatch slurm/prepare_data.sh --for roberta_base (or: megabert-data build --for roberta_base " in done.stderr


def test_job_of_many_nodes_meets_at_the_first_and_is_requeued(tmp_path):
    """Twenty thousand lines are more than a pipe holds: a reader that has enough after one would end the writer."""
    scontrol = f"""case $2 in
hostnames) seq -f node%g 20000 ;;
job) echo JobState=RUNNING; seq 20000 ;;
*) echo "$*" >{tmp_path}/requeued ;;
esac"""
    stubs = {"scontrol": scontrol, "srun": 'echo "$MASTER_ADDR"; exit 75'}
    done = run_with_stubs(tmp_path, "slurm/pretrain_large.sh", stubs=stubs, **JOB, DOCTOR="no")
    assert (done.returncode, done.stdout) == (75, "node1\n"), done.stderr
    assert (tmp_path / "requeued").read_text() == "requeue 17\n"


@pytest.mark.parametrize(
    ("array", "requeued"),
    [({"JOB_ID": "17", "TASK_ID": "3"}, "17_3"), ({"JOB_ID": "9", "TASK_ID": "3"}, "17")],  # 9: of the submitting job
)
def test_task_of_an_array_is_requeued_alone(tmp_path, array, requeued):
    stubs = {"scontrol": f'echo "$*" >>{tmp_path}/called; echo JobState=RUNNING', "srun": "exit 75"}
    array = {f"SLURM_ARRAY_{name}": value for name, value in array.items()}
    run_with_stubs(tmp_path, "slurm/pretrain_large.sh", stubs=stubs, **JOB, **array, DOCTOR="no")
    assert (tmp_path / "called").read_text().splitlines()[1:] == [f"show job {requeued}", f"requeue {requeued}"]


@pytest.mark.parametrize(("export", "code"), [("NONE", 2), ("none", 2), ("NIL", 2), ("DATA=x", 0), ("ALL", 0)])
def test_job_that_got_no_settings_is_refused(tmp_path, export, code):
    stubs = {"srun": "env"}
    settings = {**JOB, "SLURM_EXPORT_ENV": export, "DOCTOR": "no"}
    done = run_with_stubs(tmp_path, "slurm/pretrain_large.sh", stubs=stubs, **settings)
    assert done.returncode == code, done.stderr
    assert (f"--export={export} keeps every setting from this job" in done.stderr) == bool(code)
    assert "SLURM_EXPORT_ENV" not in done.stdout, "srun would give its tasks no PATH"


def test_rank_of_the_submitting_shell_is_no_rank_of_the_job(tmp_path):
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    done = run_with_stubs(tmp_path, "slurm/pretrain_large.sh", stubs={"srun": "env"}, **JOB, **rank, DOCTOR="no")
    assert done.returncode == 0, done.stderr
    assert not {line.partition("=")[0] for line in done.stdout.splitlines()} & set(rank)


@pytest.mark.parametrize(("script", "threads"), [("pretrain_large", "8"), ("finetune", "unset")])
def test_cores_of_a_task_are_left_to_the_processes_of_a_grid(tmp_path, monkeypatch, script, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    stubs, cores = {"srun": 'echo "${OMP_NUM_THREADS-unset}"'}, {"SLURM_CPUS_PER_TASK": "8"}
    done = run_with_stubs(tmp_path, f"slurm/{script}.sh", stubs=stubs, **JOB, **cores, DOCTOR="no")
    assert (done.returncode, done.stdout) == (0, f"{threads}\n"), done.stderr


def test_doctor_has_the_time_for_its_verdict(tmp_path):
    run_with_stubs(tmp_path, "slurm/pretrain_large.sh", **JOB)
    wait_s = re.search(r"--wait=(\d+) ", (tmp_path / "called").read_text())
    assert wait_s is not None
    assert int(wait_s[1]) > max(MEETING_S, 2 * COLLECTIVE_S) + 30, "and Python has to start"


def start_of_a_task(tmp_path: Path, cache: Path) -> subprocess.CompletedProcess:
    """Run the guard of a task's program with another folder than the one in /tmp."""
    own = tmp_path / "own.sh"
    own.write_text('source slurm/lib.sh; TRITON_CACHE_DIR=$1 bash -c "$OWN_CACHE" bash echo trained')
    return run("bash", own, cache)


def test_tritons_folder_is_made_for_its_user_alone(tmp_path):
    for _ in range(2):  # the second rank of a node finds it there
        done = start_of_a_task(tmp_path, tmp_path / "cache")
        assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["link", "another user's"])
def test_tritons_folder_of_somebody_else_is_refused(tmp_path, kind):
    cache = tmp_path / "cache"
    if kind == "link":
        (tmp_path / "other").mkdir()
        cache.symlink_to(tmp_path / "other")
    elif os.geteuid():
        cache = Path("/")
    else:
        cache.mkdir()
        os.chown(cache, 1, 1)
    done = start_of_a_task(tmp_path, cache)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{cache} on " in done.stderr
    assert "TRITON_CACHE_DIR=..." in done.stderr


@pytest.mark.parametrize(("given", "guards"), [({}, True), ({"TRITON_CACHE_DIR": "/scratch/cache"}, False)])
def test_task_guards_the_folder_that_the_script_has_chosen(tmp_path, monkeypatch, given, guards):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    done = run_with_stubs(tmp_path, "slurm/pretrain_large.sh", **JOB, **given, DOCTOR="no")
    assert done.returncode == 0, done.stderr
    assert ('[ -O "$TRITON_CACHE_DIR" ]' in (tmp_path / "called").read_text()) == guards


@pytest.mark.parametrize("is_copy", [False, True], ids=["in salloc after cd", "sbatch --chdir"])
def test_project_is_found_if_it_is_not_the_folder_of_submission(tmp_path, is_copy):
    script = Path("slurm/pretrain_large.sh")
    if is_copy:
        script = shutil.copy(ROOT / script, tmp_path / "slurm_script")
    settings = {**JOB, "SLURM_SUBMIT_DIR": str(tmp_path), "DOCTOR": "no"}
    done = run_with_stubs(tmp_path, str(script), **settings)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("ending", "code", "is_requeued"), [("kill -USR1 $$", 138, True), ("exit 2", 2, False)])
@pytest.mark.parametrize("doctor", ["yes", "no"])
def test_job_is_requeued_if_sigusr1_comes_before_python_answers_it(tmp_path, doctor, ending, code, is_requeued):
    scontrol = f"""case $2 in
hostnames) echo node1 ;;
job) echo JobState=RUNNING ;;
*) touch {tmp_path}/requeued ;;
esac"""
    done = run_with_stubs(
        tmp_path, "slurm/pretrain_large.sh", stubs={"scontrol": scontrol, "srun": ending}, **JOB, DOCTOR=doctor
    )
    assert (done.returncode, (tmp_path / "requeued").exists()) == (code, is_requeued), done.stderr
    assert ("the doctor's verdict" in done.stderr) == (doctor == "yes" and not is_requeued)


@pytest.mark.parametrize(
    ("script", "settings"), [("pretrain_large", {}), ("prepare_data", {"INPUT": "x", "OUTPUT": "y"})]
)
def test_signal_to_a_script_that_has_started_nothing_requeues_the_job(tmp_path, script, settings):
    scontrol = f"[ $2 = job ] && echo JobState=RUNNING || echo $* >>{tmp_path}/called"
    # A command that the script runs before its first step. It is the script's own child, and so can signal it.
    stubs = {"scontrol": scontrol, "env": "kill -USR1 $PPID; exit 1"}
    begun = tmp_path / "begun.sh"
    begun.write_text(f"source() {{ builtin source $1; env || true; }}\nbuiltin source slurm/{script}.sh\n")
    done = run_with_stubs(tmp_path, str(begun), stubs=stubs, **JOB, **settings)
    assert done.returncode == 75, done.stderr
    assert (tmp_path / "called").read_text().endswith("requeue 17\n")
    assert "srun" not in (tmp_path / "called").read_text()


@pytest.mark.parametrize("code", [0, 3])
def test_build_that_ends_by_itself_is_not_requeued(tmp_path, code):
    stubs = {"srun": f"exit {code}"}
    done = run_with_stubs(tmp_path, "slurm/prepare_data.sh", stubs=stubs, **JOB, INPUT="x", OUTPUT=str(tmp_path / "y"))
    assert done.returncode == code, done.stderr
    assert not (tmp_path / "called").exists() or "requeue" not in (tmp_path / "called").read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"CONTAINER": "pyxis"}, "needs IMAGE"), ({"CONTAINER": "docker"}, "allowed are"), ({"INPUT": ""}, "CONFIG")],
)
def test_setting_that_is_missing_is_named(tmp_path, settings, message):
    done = run_with_stubs(tmp_path, "slurm/prepare_data.sh", **{**JOB, "INPUT": "x", **settings})
    assert done.returncode == 2
    assert message in done.stderr
    assert "srun" not in ((tmp_path / "called").read_text() if (tmp_path / "called").exists() else "")


def test_signal_between_two_commands_starts_no_further_one():
    shell = (
        "source slurm/lib.sh; pid='' pending=''; trap 'forward TERM' TERM; kill -TERM $$; step sleep 600; exit $code"
    )
    assert run("bash", "-c", shell).returncode == 75


@pytest.mark.parametrize(("name", "allowed"), [("RECIPE", "demo and demo_modern"), ("CORPUS", "english and korean")])
def test_the_demo_refuses_a_recipe_or_corpus_that_it_does_not_have(name, allowed):
    done = run("env", f"{name}=bert", "bash", "examples/demo.sh")
    assert done.returncode == 2
    assert done.stderr == f"demo: {name}=bert is unknown; allowed are {allowed}.\n"
