"""Clusters that start at the same moment, as those of two workers of pytest do."""

import subprocess
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
from integration.slurm.clusters import new_folder, started

IDS = 100


def checksum(folder: str) -> int:
    """Return what ``cksum`` prints for a name: the tool derives a cluster's addresses from it."""
    return int(subprocess.run(["cksum"], input=folder, capture_output=True, text=True, check=True).stdout.split()[0])


def twin_of(folder: str) -> str:
    """Return a new folder for which the tool would choose the same addresses."""
    wanted = checksum(folder) % IDS
    twin = next(name for number in count() if checksum(name := f"{folder}-{number}") % IDS == wanted)
    Path(twin).mkdir()
    return twin


def id_of(environment: dict[str, str]) -> str:
    return (Path(environment["SLURM_TEST_DIR"]) / "id").read_text()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_slurm_clusters_start_a_hundred_times_two_at_once():
    """Every other pair has the same checksum. Run it while something keeps all cores busy."""
    outcomes = Counter()
    for number in range(100):
        folder = new_folder()
        other = twin_of(folder) if number % 2 else new_folder()
        with started(folder, other) as environments:
            outcomes["same checksum" if number % 2 else "any checksum"] += len(set(map(id_of, environments))) == 2
            for environment in environments:
                nodes = subprocess.run(["sinfo", "-h", "-o", "%D %T"], env=environment, capture_output=True, text=True)
                assert nodes.stdout == "2 idle\n", nodes.stderr
    print(f"pairs of clusters started at once: {dict(outcomes)}")
    assert outcomes == {"same checksum": 50, "any checksum": 50}
