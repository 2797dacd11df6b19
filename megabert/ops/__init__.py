"""Fused operations of encoder, loss and optimizer, each with a reference that defines it and backends that match it.

An op with kernels is a folder: ``api.py`` is the public function, the table of its backends, and the backend in torch
that is fast on a CPU; ``reference.py`` says in plain torch what it computes, ``triton.py`` has the GPU kernels (with
``kernels.py`` where they are long), ``apex.py`` calls NVIDIA Apex.
"""
