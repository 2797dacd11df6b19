"""What starting a run takes on many ranks: imports, meeting, compiling. Numbers are counted, rates are assumed."""

import math
from dataclasses import dataclass

from megabert.distributed.process_group import MESH_RANKS
from megabert.planning.step_time import Cluster

IMPORT_S = 3.0
"""CPU seconds of a rank's imports where files are in memory, as on one core here."""
IMPORT_OPERATIONS = 4 * 1757
"""Operations on files of a rank's imports: 1,757 modules were counted, and four operations each are assumed."""
FILE_OPERATIONS_PER_S = 50_000
"""What a file system that all nodes share answers. Assumed."""
STORE_READS_PER_S = 20_000
"""What rank 0's store answers while ranks connect. Assumed."""
GLOO_GROUPS = 3
"""CPU groups of a run on GPUs: the loader's, the main thread's and that of the checkpoints."""
COMPILE_S = 15.0
"""Seconds of the loader's loops, once a machine, or on one for all where ``~/.cache`` is shared; then they are kept."""


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """Seconds before the first step, without Triton's kernels, which a GPU has to say."""

    imports_s: float
    """With the environment on a file system that all nodes share."""
    local_imports_s: float
    """With a copy on each node, as a container image is."""
    meeting_s: float
    compiling_s: float
    store_reads: int
    """Addresses that ranks read from rank 0's store."""
    sockets: int
    """Connections of one rank."""


def start_up(cluster: Cluster, *, as_needed: bool | None = None) -> StartUp:
    """Return what starting takes.

    Args:
        cluster: GPUs and nodes; a rank a GPU.
        as_needed: Whether ranks connect to those that they talk to, and not to all; None: as megabert does.
    """
    ranks = cluster.world_size
    is_lazy = ranks > MESH_RANKS if as_needed is None else as_needed
    # Collectives talk to ranks at distances of powers of two, in both directions.
    peers = min(ranks - 1, max(0, 2 * math.ceil(math.log2(ranks)) - 1)) if is_lazy else ranks - 1
    # In a full mesh a rank also reads its own address.
    reads = GLOO_GROUPS * ranks * (peers if is_lazy else ranks)
    return StartUp(
        imports_s=IMPORT_S + ranks * IMPORT_OPERATIONS / FILE_OPERATIONS_PER_S,
        local_imports_s=IMPORT_S,
        meeting_s=reads / STORE_READS_PER_S,
        compiling_s=COMPILE_S,
        store_reads=reads,
        sockets=GLOO_GROUPS * peers,
    )
