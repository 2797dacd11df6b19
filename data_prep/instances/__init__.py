"""From documents to instances: which sentences go together, which tokens are masked, how a shard's rows are made.

`pairs` holds what every pairing takes and makes, the pairing that makes none, and the way from pairs to masked rows.
The other pairings are `balanced` (the default; `pair_walk_loops` walks the documents, `balanced_loops` exchanges and
cuts) and `google` (as google-research/bert, array arithmetic). `draws` names every draw.
"""
