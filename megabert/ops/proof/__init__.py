"""Every backend of every op held against the op's definition on the device at hand: ``table.py`` is the entry.

``problem.py`` is one comparison, ``problems.py`` and ``exact_problems.py`` make them for given shapes, ``table.py``
lists the small ones for each op. Tests, ``benchmarks/gpu/parity.py`` and ``megabert doctor --prove`` use the same.
"""
