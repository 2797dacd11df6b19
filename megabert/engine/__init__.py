"""DeepSpeed under one interface: ZeRO stages, master weights, and the table of which rank holds which fragment."""
