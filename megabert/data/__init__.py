"""From instance shards to packed micro-batches.

In the order in which a batch passes through: ``position`` says which instances are next, ``permutation`` which rows
these are in this epoch, ``shard_set`` reads the rows, ``dynamic_masking`` masks them where the shards have no masks,
``packing`` plans which rank takes which instances, ``batch`` gathers them into micro-batches (``gather_loops``),
``step_packer`` is all of this for one step, and ``loader`` does it one step ahead on a thread.
"""

from megabert.data.batch import IGNORED, MicroBatch
from megabert.data.loader import PackedLoader, StepTotals
from megabert.data.packing import InstanceStatistics, MicroShape, plan_packing, shape_for
from megabert.data.position import DataPosition, PositionRange
from megabert.data.shard_set import ShardSet
from megabert.data.step_packer import RankShare, StepBatch, StepPacker, validation_batches

__all__ = [
    "IGNORED",
    "DataPosition",
    "InstanceStatistics",
    "MicroBatch",
    "MicroShape",
    "PackedLoader",
    "PositionRange",
    "RankShare",
    "ShardSet",
    "StepBatch",
    "StepPacker",
    "StepTotals",
    "plan_packing",
    "shape_for",
    "validation_batches",
]
