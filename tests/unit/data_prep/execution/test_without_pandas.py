"""pyarrow would import pandas for its first array, which takes longer than most units of a small build."""

import importlib
import importlib.util
import sys

import pytest

from data_prep.execution.without_pandas import leave_out_pandas


def test_pandas_is_left_out(monkeypatch):
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    leave_out_pandas()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pandas")
    assert importlib.util.find_spec("pandas") is None
    monkeypatch.delitem(sys.modules, "pandas")


def test_pandas_stays_if_it_is_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", sys)
    leave_out_pandas()
    assert importlib.import_module("pandas") is sys
