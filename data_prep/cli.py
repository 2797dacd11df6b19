"""The commands of ``megabert-data``."""

import sys
from collections.abc import Sequence

from data_prep.execution.without_pandas import leave_out_pandas
from megabert.settings.command_line.program import Program
from megabert.settings.command_line.safe_path import leave_out_working_folder

PROGRAM = Program(
    name="megabert-data",
    about="Make shards of pre-training instances from raw text.",
    package="data_prep.commands",
    groups={"prepare": "build vocab estimate", "look": "peek stats verify"},
    example="megabert-data build --for demo --input 'texts/*.txt' --output data",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code that the shell sees."""
    if argv is None:  # a process of its own, not a call from Python
        leave_out_working_folder()
        leave_out_pandas()
    return PROGRAM.run(list(sys.argv[1:] if argv is None else argv))
