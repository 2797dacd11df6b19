"""The commands of ``megabert``."""

import sys
from collections.abc import Sequence

from megabert.command_line.program import Program
from megabert.command_line.safe_path import leave_out_working_folder
from megabert.distributed.environments import before_ranks_meet, own_rank


def _rank_label() -> str:
    rank = own_rank()
    return "" if rank == "0" else f"[rank {rank}] "


PROGRAM = Program(
    name="megabert",
    about="Pre-train BERT on instance shards, fine-tune it, and look inside. megabert-data makes shards from raw text.",
    package="megabert.commands",
    groups={
        "prepare": {
            "doctor": "check whether this machine, or this job, is fit to train",
            "estimate": "say what a recipe needs: memory, days, disk, data",
        },
        "train": {
            "pretrain": "train a BERT on instance shards, or resume a run",
            "finetune": "train a head on labelled examples, and score it",
        },
        "look": {
            "watch": "show a run: loss, rate, time left, last checkpoint",
            "report": "show what a run has learned: table, loss curve, fill-mask",
            "compare": "compare two runs step by step",
            "attention": "write a page that shows the attention on a text",
            "similar": "find the nearest word embeddings; a - b + c",
        },
        "use": {
            "export": "write a checkpoint as a folder that transformers loads",
            "evaluate": "score a fine-tuned model on labels, or any model on a text",
            "fill-mask": "guess the [MASK]s of a text",
            "embed": "write a vector for each line of a file, or for each token",
        },
    },
    example="megabert pretrain --recipe debug --data.path runs/demo-data --run-dir runs/first",
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
    if argv is None:  # a process of its own, not a call from Python
        leave_out_working_folder()
    return PROGRAM.run(_without_local_rank(list(sys.argv[1:] if argv is None else argv)))


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
