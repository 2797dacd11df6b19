"""How many addresses ranks read from rank 0's store to meet: in a large world, those of the ranks that they talk to."""

import pytest
from forked.client import run_command

from megabert.distributed.process_group import MESH_RANKS

RANKS = 16
PEERS = 7  # collectives talk to ranks at distances of 1, 2, 4 and 8, in both directions


@pytest.mark.parametrize(("world", "reads_per_rank"), [(RANKS, RANKS), (MESH_RANKS + 1, PEERS)])
def test_large_world_connects_only_as_needed(world, reads_per_rank, tmp_path):
    printed = tmp_path / "reads"
    assert run_command("several_ranks.store_reads", [str(RANKS), str(world)], printed) == 0, printed.read_text()
    assert int(printed.read_text()) == RANKS * reads_per_rank
