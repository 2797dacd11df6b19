"""The Python on the documentation's pages runs, and prints what stands below it."""

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n*^```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")
PAGES = ["walkthrough.md", "walkthrough.ko.md", "model.md"]


def blocks_of(page: str) -> list[re.Match]:
    return list(BLOCK.finditer((ROOT / "docs" / page).read_text(encoding="utf-8")))


def assert_printed(found: str, expected: str, where: str) -> None:
    """Compare words exactly, numbers to one unit of their last digit: machines differ in the last bit."""
    assert NUMBER.sub("#", found) == NUMBER.sub("#", expected), f"{where} prints:\n{found}"
    for ours, shown in zip(NUMBER.findall(found), NUMBER.findall(expected), strict=True):
        unit = 10.0 ** -len(shown.partition(".")[2])
        distance = abs(float(ours.replace(",", "")) - float(shown.replace(",", "")))
        assert distance <= 1.001 * unit, f"{where}: {ours} for {shown}; it prints:\n{found}"


@pytest.mark.parametrize("page", PAGES)
def test_python_on_the_page_runs_and_prints_what_it_shows(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    names: dict = {}
    with torch.random.fork_rng(), torch.set_grad_enabled(True):
        for block in blocks_of(page):
            line = text[: block.start("code")].count("\n")
            printed = io.StringIO()
            code = compile("\n" * line + block["code"], f"docs/{page}", "exec", dont_inherit=True)
            with contextlib.redirect_stdout(printed):
                exec(code, names)
            assert_printed(printed.getvalue(), block["output"] or "", f"docs/{page}:{line}")


class _WithoutStrings(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) else node


def test_both_walkthroughs_run_the_same_code():
    def shape(page: str) -> list[str]:
        return [ast.dump(_WithoutStrings().visit(ast.parse(block["code"]))) for block in blocks_of(page)]

    assert shape("walkthrough.md") == shape("walkthrough.ko.md")
