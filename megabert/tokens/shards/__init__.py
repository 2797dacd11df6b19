"""Instance shards, the contract between ``data_prep`` and ``megabert``: their format, and all that reads them.

``columns`` is the table of columns, ``format`` the Arrow schema and its metadata, ``folder`` the manifest and the index
of lengths next to each shard, ``instances`` the checks of record batches. To read: ``shard_set`` is one split by global
rows, ``shard_file`` one of its shards, mapped into memory, ``copy_loops`` the loops that copy instances out of it.
Before a run, ``checked_shards`` checks their bytes, and ``recipe_fit`` compares their settings with the recipe.
"""

from megabert.tokens.shards.columns import FlatInstances, flat_list
from megabert.tokens.shards.folder import (
    MANIFEST_NAME,
    LengthsSpan,
    Manifest,
    ShardEntry,
    lengths_path,
    read_length_spans,
    read_lengths,
    read_manifest,
    write_lengths,
    write_manifest,
)
from megabert.tokens.shards.format import (
    MAX_BATCH_ROWS,
    ShardMetadata,
    instance_schema,
    rows_per_batch,
    token_type,
)
from megabert.tokens.shards.instances import find_nonsense, read_batches
