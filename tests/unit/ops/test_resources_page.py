"""The page of registers and shared memory has the numbers of the budget, which the compiled kernels are held to."""

import json
from pathlib import Path

HERE = Path(__file__).parent
CARDS = ("80", "86", "89", "90", "100", "120")


def test_page_has_every_kernel_of_the_budget_and_its_numbers():
    """Registers are rounded up to 8 in the budget, kibibytes to whole ones on the page."""
    rows = [line.strip("|").split("|") for line in (HERE / "resources.md").read_text(encoding="utf-8").splitlines()]
    shown = {row[0].strip(): [cell.strip() for cell in row[2:]] for row in rows if len(row) == 2 + len(CARDS)}
    kernels = json.loads((HERE / "kernel_budget.json").read_text())["kernels"]
    assert shown.keys() - {"kernel", "---"} == kernels.keys()
    for name, cards in kernels.items():
        for card, cell in zip(CARDS, shown[name], strict=True):
            assert (cell == "-") == (card not in cards), name
            if card in cards:
                registers, kibibytes = map(int, cell.split(" / "))
                assert -(-registers // 8) * 8 == cards[card][0], f"{name} on sm_{card}"
                assert kibibytes == round(cards[card][2] / 1024), f"{name} on sm_{card}"
