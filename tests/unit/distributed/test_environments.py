import os

import pytest

from megabert.distributed.environments import describe_rank, find_launcher, own_rank
from megabert.foundation.errors import ConfigError

BATCH_SCRIPT = {"SLURM_JOB_ID": "41", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "node[1-2]"}
STEP = {"SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "node[1-2]"}
TASK = BATCH_SCRIPT | STEP | {"SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node7", "MASTER_PORT": "1234"}


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A stand-in that knows one node list."""
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$*" = "show hostnames node[1-2]" ] && printf "node1\\nnode2\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_process_without_launcher_is_alone():
    assert find_launcher({}) is None
    assert describe_rank({}) == {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


def test_batch_script_itself_is_alone():
    assert describe_rank(BATCH_SCRIPT)["WORLD_SIZE"] == "1"


@pytest.mark.parametrize(("environment", "rank"), [({}, "0"), (BATCH_SCRIPT, "0"), (TASK, "3"), (TORCHRUN, "5")])
def test_rank_is_known_under_every_launcher(environment, rank):
    assert own_rank(environment) == rank


def test_task_of_srun_is_a_rank(scontrol):
    master = {"MASTER_ADDR": "node1", "MASTER_PORT": str(12_000 + 41 * 16 + 1)}
    assert describe_rank(TASK) == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", **master}


def test_single_host_needs_no_scontrol(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_rank({**TASK, "SLURM_STEP_NODELIST": "gpu-17"})["MASTER_ADDR"] == "gpu-17"
    with pytest.raises(ConfigError, match="export MASTER_ADDR"):
        describe_rank(TASK)


def test_address_and_port_that_are_set_are_kept(monkeypatch):
    monkeypatch.setenv("PATH", "")
    rank = describe_rank({**TASK, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    assert (rank["MASTER_ADDR"], rank["MASTER_PORT"]) == ("10.0.0.1", "29500")


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_processes_of_mpirun_are_no_worlds_of_one(name):
    with pytest.raises(ConfigError, match=r"mpirun started 4 processes.*srun -n 4 or torchrun --nproc-per-node 4"):
        describe_rank({name: "4"})
    assert describe_rank({name: "1"})["WORLD_SIZE"] == "1"


@pytest.mark.parametrize("launched", [{"RANK": "0", "WORLD_SIZE": "1"}, TASK | {"MASTER_ADDR": "node1"}])
def test_mpi_variables_of_srun_or_around_a_launcher_do_no_harm(launched):
    assert describe_rank({**launched, "PMI_SIZE": "4"}) == describe_rank(launched)


def test_launcher_inside_a_task_comes_first():
    assert describe_rank({**TASK, **TORCHRUN}) == TORCHRUN


def test_failing_scontrol_is_named(scontrol):
    with pytest.raises(ConfigError, match=r"scontrol show hostnames node\[3-9\] failed"):
        describe_rank({**TASK, "SLURM_STEP_NODELIST": "node[3-9]"})


@pytest.mark.parametrize("value", ["", "-1", "\u00b2", "1.0", "9" * 5000])
def test_rank_without_a_number_speaks_for_itself(value):
    assert own_rank({**TORCHRUN, "RANK": value}) == "0"  # it would end in silence, as the other ranks do


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE='many'"),
        ({"RANK": "8"}, r"RANK='8' .* below 8 \(WORLD_SIZE\)"),
        ({"LOCAL_RANK": "8"}, r"LOCAL_RANK='8' .* below 8"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0' .* at least 1"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT='65536' .* below 65,536"),
    ],
)
def test_what_is_no_number_within_bounds_is_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        describe_rank({**TORCHRUN, **changed})
