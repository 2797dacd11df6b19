"""Raw text to verified Arrow shards of pre-training instances; needs neither torch nor a GPU."""
