"""From documents to instances: which sentences go together, which tokens are masked, how a shard's rows are made.

`pairs` holds what every pairing takes and makes. The pairings are `balanced` (the default: `balanced_loops` walks the
documents, `random_second_loops` finds random seconds, `truncation_loops` cuts), `google` (as google-research/bert,
array arithmetic) and `full_sentences` (no pairs at all). `assemble` turns pairs into masked rows. `draws` names every
draw.
"""
