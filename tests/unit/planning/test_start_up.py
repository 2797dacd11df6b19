"""What ranks read to meet, against the count of a real group, and how start-up grows."""

import pytest
from forked.client import run_command

from megabert.distributed.process_group import MESH_RANKS
from megabert.observability.gpus import GPUS
from megabert.planning.start_up import GLOO_GROUPS, start_up
from megabert.planning.step_time import Cluster

RANKS = 16


@pytest.mark.parametrize("world", [RANKS, MESH_RANKS + 1])
def test_reads_are_those_of_a_group(world, tmp_path):
    printed = tmp_path / "reads"
    assert run_command("distributed.store_reads", [str(RANKS), str(world)], printed) == 0, printed.read_text()
    counted = int(printed.read_text())
    cluster = Cluster(gpu=GPUS["h200"], nodes=RANKS // 8, gpus_per_node=8)
    assert counted * GLOO_GROUPS == start_up(cluster, as_needed=world > MESH_RANKS).store_reads


def test_meeting_does_not_grow_with_the_square():
    small, large = (start_up(Cluster(gpu=GPUS["h200"], nodes=n, gpus_per_node=8)) for n in (128, 512))
    assert large.meeting_s < 6 * small.meeting_s < 30
    assert large.sockets < 100
