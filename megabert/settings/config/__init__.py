"""Configuration: dataclasses, recipes and files, flags, the DeepSpeed dict derived from them."""
