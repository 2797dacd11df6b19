"""Instance shards, the contract between ``data_prep`` and ``megabert``: their format, and all that reads them.

``columns`` is the table of columns, ``format`` the Arrow schema and its metadata, ``folder`` the manifest and the index
of lengths next to each shard. To read: ``shard_set`` is one split by global rows, ``shard_file`` one of its shards,
mapped into memory, with the checks of record batches, ``copy_loops`` the loops that copy instances out of it. Before a
run, ``checked_shards`` checks their bytes, and ``recipe_fit`` compares their settings with the recipe.
"""
