"""The commands of ``megabert``."""

import gc
import logging
import os
import sys
import threading
from collections.abc import Sequence

from megabert.distributed.environments import MEETING_THREAD, before_ranks_meet, own_rank
from megabert.settings.command_line.program import Program
from megabert.settings.command_line.safe_path import leave_out_working_folder


def _rank_label() -> str:
    rank = own_rank()
    return "" if rank == "0" else f"[rank {rank}] "


PROGRAM = Program(
    name="megabert",
    about="Pre-train BERT on shards that megabert-data makes, fine-tune it, look inside.",
    package="megabert.commands",
    groups={
        "prepare": "doctor tune estimate",
        "train": "pretrain finetune",
        "look": "watch track report compare attention similar",
        "use": "export merge evaluate pll pairs fill-mask embed",
    },
    example="megabert pretrain --recipe debug --data.path runs/demo-data",
    rank_label=_rank_label,
    while_parsing=before_ranks_meet,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; default ``sys.argv[1:]``.

    Returns:
        Exit code, as docs/troubleshooting.md lists them.
    """
    if argv is not None:  # a call from Python
        return PROGRAM.run(_without_local_rank(list(argv)))
    leave_out_working_folder()
    code = PROGRAM.run(_without_local_rank(sys.argv[1:]))
    if any(thread.name == MEETING_THREAD for thread in threading.enumerate()):
        # The ranks have not met. At its end Python stops the thread when it returns from torch's store, and the process
        # would abort (SIGABRT): C++ cannot be left in that way.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    gc.freeze()  # or Python, at its end, looks for garbage among all that torch and DeepSpeed have made: 0.7 s
    return code


def _without_local_rank(arguments: list[str]) -> list[str]:
    """Drop ``--local_rank N``, which launchers insert anywhere; the environment says the same."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--local_rank", "--local-rank"):
            next(rest, None)
        elif not argument.startswith(("--local_rank=", "--local-rank=")):
            kept.append(argument)
    return kept
