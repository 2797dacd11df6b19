"""Every bad input of the table is answered as its row says; most rows are ``make soak``'s."""

from pathlib import Path

import pytest
from bad_input.cases import CASES
from bad_input.harness import Case, CommandServer, problems_of
from support.soak import in_soak


def test_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", [case if case.quick else in_soak(case)[0] for case in CASES], ids=str)
def test_bad_input(case: Case, server: CommandServer, material: Path, tmp_path: Path):
    outcome = server.run_case(case, material, tmp_path)
    problems = problems_of(case, outcome)
    assert not problems, f"{case.command}\n{problems}\n{outcome.stdout[-1500:]}\n{outcome.stderr[-3000:]}"
