"""No mutation of a file that we read ends in a traceback, a crash, a hang or too much memory."""

import os
import shutil
from pathlib import Path

import pytest
from bad_input.formats import FORMATS
from bad_input.fuzz import Format, run_mutations
from bad_input.harness import CommandServer, Tally

SEED = int(os.environ.get("MEGABERT_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("MEGABERT_FUZZ_COUNT", "660"))
"""Mutations a format: 31 formats make more than 20,000."""
TOGETHER = 30
"""Mutations that one process reads, one after the other."""


@pytest.mark.soak
@pytest.mark.timeout(0)  # each mutation has a bound of its own
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_mutations(form: Format, server: CommandServer, material: Path, tmp_path: Path):
    failures, tally = [], Tally()
    for first in range(0, COUNT, TOGETHER):
        scratch = tmp_path / "scratch"
        for mutated in run_mutations(form, range(first, min(first + TOGETHER, COUNT)), SEED, server, material, scratch):
            tally.add(form.name, mutated.outcome)
            if mutated.problems:
                failures.append(f"{mutated.name}: {mutated.problems} {mutated.outcome.stderr[-400:]}")
        shutil.rmtree(scratch)
    print(f"{tally}; seed {SEED}")
    assert not failures, f"{len(failures)} of {COUNT}\n" + "\n".join(failures[:20])
