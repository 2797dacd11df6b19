"""Fused operations of encoder, loss and optimizer, each with a reference that defines it and backends that match it.

An op with kernels is a folder. ``api.py`` is the public function and its table of backends. ``reference.py`` defines
it in plain torch, and ``cpu.py`` is the backend in plain torch that is fast on a CPU and runs on any device.
``triton.py`` has the GPU kernels (with ``kernels.py`` if they are long), and ``apex.py`` calls NVIDIA Apex.
"""
