"""DeepSpeed configurations shipped as data: ZeRO stage and buckets; what a recipe owns is "auto"."""
