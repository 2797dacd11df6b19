"""What is counted and checked of finished shards: `stats` and `plots` count, `verify` checks against `invariants`."""
