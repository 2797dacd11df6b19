"""From documents to instances: which sentences go together, which tokens are masked, how a shard's rows are made.

`pairs` holds what every pairing takes and makes, and the pairing that makes none. The others are `balanced` (the
default; `pair_walk_loops` walks the documents, `balanced_loops` exchanges and cuts) and `google` (as
google-research/bert, array arithmetic). `assemble` turns pairs into masked rows. `draws` names every draw.
"""
