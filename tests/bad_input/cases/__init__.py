"""The table of bad inputs: a module for each kind, a row for each case."""

from importlib import import_module
from pkgutil import iter_modules

CASES = [case for module in iter_modules(__path__) for case in import_module(f"{__name__}.{module.name}").CASES]
"""All cases; their names are unique."""
