import os
import subprocess
import sys
from pathlib import Path

import pytest
from unit.data_prep.builds import hashes

from data_prep.execution import mpi as parallel
from data_prep.execution.mpi import executor_of_all_ranks
from megabert.foundation.errors import ConfigError

ROOT = Path(__file__).parents[4]
MPIRUN = Path(sys.executable).parent / "mpirun"
FLAGS = "--vocab-size 2000 --lengths 64 128 --dupe-factor 2 --validation-share 0.1"

with_mpi = pytest.mark.skipif(not MPIRUN.is_file(), reason="no mpirun beside Python: pip install 'megabert[mpi]'")


def mpirun(ranks, *arguments):
    # As root and on few cores Open MPI wants to be asked; MPICH does not.
    environment = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    command = [MPIRUN, "-n", ranks, sys.executable, "-m", "data_prep", *arguments]
    words = list(map(str, command))
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


@with_mpi
def test_ranks_give_the_bytes_of_processes(built, make_config, tmp_path):
    source = make_config().sources[0].input
    output = tmp_path / "out"
    done = mpirun(3, "build", "--input", source, "--output", output, *FLAGS.split())
    assert done.returncode == 0, done.stderr
    assert hashes(output) == hashes(built.folder)
    checked = mpirun(2, "verify", output)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count("all sound") == 2  # one line a length, from rank 0 alone


@with_mpi
def test_error_on_any_rank_ends_all_with_its_code(tmp_path):
    for index in range(6):
        (tmp_path / f"{index}.txt").write_bytes(b"Good text.\n\nBad \xff text.\n")
    done = mpirun(2, "build", "--input", tmp_path / "*.txt", "--output", tmp_path / "out")
    assert done.returncode == 3
    assert "not utf-8 at byte 16" in done.stderr
    assert "Traceback" not in done.stderr


class World:
    size, rank = 1, 0


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4"}, ("4 ranks", "found: none", "srun --mpi=pmi2", "--workers N")),
        ({"SLURM_STEP_NUM_TASKS": "2", "PMIX_RANK": "0"}, ("found: PMIx", "Open MPI speaks it")),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, ("found: PMI-1/PMI-2", "MPICH speaks it")),
    ],
)
def test_rank_alone_where_more_were_asked_for_names_the_way_out(monkeypatch, environment, words):
    class Mpi:
        COMM_WORLD = World

        @staticmethod
        def Get_library_version():
            return "MPICH Version: 5.0\nmore"

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(parallel, "_mpi", lambda: Mpi)
    with pytest.raises(ConfigError) as error, executor_of_all_ranks(None, is_mpi=False):
        pass
    for word in (*words, "MPICH Version: 5.0"):
        assert word in str(error.value)


def test_workers_in_a_shell_that_is_one_task_of_several_need_no_mpi(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with executor_of_all_ranks(1, is_mpi=False) as executor:
        assert executor is not None
        assert executor.workers == 1


def test_missing_mpi_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConfigError, match=r"pip install 'megabert\[mpi\]'"), executor_of_all_ranks(1, is_mpi=True):
        pass
