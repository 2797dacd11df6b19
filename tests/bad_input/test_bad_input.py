"""Every bad input of the table is answered as its row says."""

from pathlib import Path

import pytest
from bad_input.cases import CASES
from bad_input.harness import Case, CommandServer, Outcome, Tally, problems_of


def test_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", [case for case in CASES if case.quick], ids=str)
def test_bad_input(case: Case, server: CommandServer, material: Path, tmp_path: Path):
    assert_answered(case, server.run_case(case, material, tmp_path))


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_input_in_full(case: Case, server: CommandServer, material: Path, tmp_path: Path, tally: Tally):
    outcome = server.run_case(case, material, tmp_path)
    tally.add(" ".join(case.command.split()[:2]), outcome)
    assert_answered(case, outcome)


def assert_answered(case: Case, outcome: Outcome) -> None:
    problems = problems_of(case, outcome)
    assert not problems, f"{case.command}\n{problems}\n{outcome.stdout[-1500:]}\n{outcome.stderr[-3000:]}"
