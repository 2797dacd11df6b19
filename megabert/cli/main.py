"""Dispatch of ``megabert VERB``; exceptions become messages and exit codes."""

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from megabert import __version__
from megabert.distributed.environments import before_ranks_meet, own_rank
from megabert.errors import ConfigError, Echo, MegabertError

COMMANDS = {
    "doctor": ("megabert.commands.doctor", "check whether this machine, or this job, is fit to train"),
    "estimate": ("megabert.commands.estimate", "say what a recipe needs: memory, days, disk, passes over the corpus"),
    "pretrain": ("megabert.commands.pretrain", "train a BERT on instance shards, or go on with a run"),
    "export": ("megabert.commands.export", "write a checkpoint as a folder that transformers loads"),
    "watch": ("megabert.commands.watch", "show how a run stands: loss, rate, time left, last checkpoint"),
    "compare": ("megabert.commands.compare", "compare two runs step by step"),
    "report": ("megabert.commands.report", "show what a run has learned: table, loss curve, fill-mask"),
    "finetune": ("megabert.commands.finetune", "train a head on labelled examples, and score it"),
    "evaluate": ("megabert.commands.evaluate", "score a fine-tuned model again"),
    "fill-mask": ("megabert.commands.fill_mask", "guess the [MASK]s of a text"),
    "attention": ("megabert.commands.attention", "write a page that shows the attention on a text"),
    "similar": ("megabert.commands.similar", "find the nearest word embeddings; a - b + c"),
    "embed": ("megabert.commands.embed", "write a vector for each line of a file, or for each of its tokens"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; default ``sys.argv[1:]``.

    Returns:
        Exit code: 0, or that of the error's class, or 1 with a traceback for a bug.
    """
    arguments = _without_local_rank(list(sys.argv[1:] if argv is None else argv))
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if arguments[0] == "--version":
        print(__version__)
        return 0
    try:
        with before_ranks_meet():
            verb = _known(arguments[0])
        code = importlib.import_module(COMMANDS[verb][0]).run(arguments[1:]) or 0
        sys.stdout.flush()  # else a closed pipe shows only at Python's end
        return code
    except Echo as echo:  # another rank reports it
        return echo.exit_code
    except MegabertError as error:
        print(f"{_rank_label()}megabert: {type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more at its end
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("megabert: interrupted", file=sys.stderr)
        return 130
    except Exception:
        print(f"{_rank_label()}megabert: a bug:", file=sys.stderr)
        traceback.print_exc()
        return 1


def _known(verb: str) -> str:
    if verb not in COMMANDS:
        # The same words as for an unknown configuration field.
        from megabert.config.loading import nearest

        raise ConfigError(f"{verb}: no such command{nearest(verb, list(COMMANDS))}")
    return verb


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {verb:<{width}}  {about}" for verb, (_, about) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: megabert COMMAND ...",
            "",
            "Pre-train BERT from instance shards (megabert-data makes them from raw text).",
            "",
            *lines,
            "",
            "megabert COMMAND --help says more. Example:",
            "  megabert pretrain --recipe debug --data.path runs/demo-data --run-dir runs/first",
        ]
    )


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


def _rank_label() -> str:
    rank = own_rank()
    return "" if rank == "0" else f"[rank {rank}] "
