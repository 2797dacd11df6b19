"""From instance shards to packed micro-batches: order, position, packing and the loader."""
