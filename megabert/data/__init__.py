"""From instance shards to packed micro-batches: order, position, packing and the loader."""

from megabert.data.batch import IGNORED, MicroBatch
from megabert.data.loader import PackedLoader, StepBatch, validation_batches
from megabert.data.packing import InstanceStatistics, MicroShape, plan, shape_for
from megabert.data.position import DataPosition, PositionRange
from megabert.data.shard_set import ShardSet

__all__ = [
    "IGNORED",
    "DataPosition",
    "InstanceStatistics",
    "MicroBatch",
    "MicroShape",
    "PackedLoader",
    "PositionRange",
    "ShardSet",
    "StepBatch",
    "plan",
    "shape_for",
    "validation_batches",
]
