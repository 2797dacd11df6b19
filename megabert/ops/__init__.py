"""Fused operations of the encoder, each with a reference that defines it and backends that match it."""
