"""Keeps pandas, which no code here needs, out of the processes of a build."""

import sys
from importlib.abc import MetaPathFinder
from typing import Any


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("megabert-data runs without pandas", name=fullname)


def leave_out_pandas() -> None:
    """Let pyarrow do without pandas in this process.

    A module of None in its place would not do: pyarrow takes that None for the package.

    pyarrow imports pandas for its first array, if it is installed, to recognize its series: half a second of a process.
    """
    sys.meta_path.insert(0, _WithoutPandas())
