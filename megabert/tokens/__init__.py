"""From text to instances: tokenizers, masks, and the format of the shards."""
