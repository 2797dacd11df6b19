"""From documents to instances: which sentences go together, masks, shards."""
