"""DeepSpeed configurations shipped as data: ZeRO stage, buckets, offload; what a recipe owns is "auto"."""
