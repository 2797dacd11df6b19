"""pyarrow would import pandas for its first array, which takes longer than most units of a small build."""

import importlib
import sys

import pytest

from data_prep.execution.without_pandas import leave_out_pandas


def test_pandas_is_left_out_and_nothing_else(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in ("pandas", "colorsys"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    leave_out_pandas()
    with pytest.raises(ImportError, match="runs without pandas"):
        importlib.import_module("pandas")
    assert importlib.import_module("colorsys")
