"""``make bench`` starts each CPU benchmark without arguments."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted([*(ROOT / "benchmarks").glob("bench_*.py"), *(ROOT / "benchmarks" / "cpu").glob("bench_*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_benchmark_needs_no_argument(script):
    assert "benchmarks/bench_*.py benchmarks/cpu/bench_*.py" in (ROOT / "Makefile").read_text(encoding="utf-8")
    required = [
        ast.unparse(call)
        for call in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".add_argument")
        if not ast.literal_eval(call.args[0]).startswith("-") and not any(key.arg == "nargs" for key in call.keywords)
    ]
    assert required == []
