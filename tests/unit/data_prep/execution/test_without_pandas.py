"""pyarrow would import pandas for its first array, which takes longer than most units of a small build."""

import subprocess
import sys

FIRST_ARRAY = """
import sys
from data_prep.execution.without_pandas import leave_out_pandas
{leave_out}
import pyarrow
assert pyarrow.array([7, 8]).to_pylist() == [7, 8]
print("pandas" in sys.modules)
"""


def imports_pandas(leave_out: str) -> bool:
    script = FIRST_ARRAY.format(leave_out=leave_out)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "True\n"


def test_the_first_array_of_pyarrow_does_without_pandas():
    assert not imports_pandas("leave_out_pandas()")
    assert imports_pandas("")
