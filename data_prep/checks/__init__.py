"""What is counted and checked of finished shards: `batch` and `stats` count, `verify` checks against `invariants`."""
