"""What is counted and checked of finished shards."""
