"""Instance shards, the contract between ``data_prep`` and ``megabert``: their format, and all that reads them.

``format`` has the Arrow schema, its metadata and the manifest, ``columns`` the table of the columns, ``instances``
the checks of record batches, and ``row_lengths`` the index of lengths next to a shard. To read: ``shard_set`` is one
split by global rows, ``row_reader`` the shards that are open, ``shard_file`` one of them, mapped into memory,
``copy_loops`` the loops that copy instances out of it. Before a run, ``checked_shards`` checks their bytes, and
``recipe_fit`` compares their settings with the recipe.
"""

from megabert.shards.columns import FlatInstances, flat_list, token_type
from megabert.shards.format import (
    MANIFEST_NAME,
    MAX_BATCH_ROWS,
    Manifest,
    ShardEntry,
    ShardMetadata,
    instance_schema,
    read_manifest,
    rows_per_batch,
    write_manifest,
)
from megabert.shards.instances import find_nonsense, read_batch, read_batches
from megabert.shards.row_lengths import LengthsSpan, lengths_path, read_length_spans, read_lengths, write_lengths
