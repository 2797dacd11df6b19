"""``megabert-data``: the table of verbs, and exceptions turned into exit codes."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

from megabert import __version__
from megabert.errors import ConfigError, DataError, MegabertError

# verb: (module with `add_arguments` and `run`, one line of help, example)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "build": (
        "data_prep.commands.build",
        "text to shards of pre-training instances",
        "megabert-data build --input 'texts/*.txt' --output data/mine --vocab-size 30522 --lengths 128 512",
    ),
    "vocab": (
        "data_prep.commands.vocab",
        "train a vocabulary alone",
        "megabert-data vocab --input 'texts/*.jsonl' --output vocabularies/mine --vocab-size 30522",
    ),
    "peek": (
        "data_prep.commands.peek",
        "show one instance, masks in place",
        "megabert-data peek data/mine/instances/128/train-00000-00.arrow:7",
    ),
    "verify": (
        "data_prep.commands.verify",
        "hash every shard again and check every instance",
        "megabert-data verify data/mine",
    ),
    "bench": (
        "data_prep.commands.bench",
        "build in a temporary folder on one core and time every stage",
        "megabert-data bench --input texts/part.jsonl --tokenizer vocabularies/mine --lengths 128",
    ),
    "stats": (
        "data_prep.commands.stats",
        "what a build contains and what was dropped",
        "megabert-data stats data/mine",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code that a shell sees."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = arguments[0] if arguments else ""
    if verb in ("", "-h", "--help"):
        print(_overview(), file=sys.stdout if verb else sys.stderr)
        return 0 if verb else 2
    if verb == "--version":
        print(__version__)
        return 0
    return _guarded(lambda: _run(verb, arguments[1:]))


def _run(verb: str, arguments: Sequence[str]) -> int:
    if verb not in COMMANDS:
        from megabert.config.loading import nearest

        raise ConfigError(f"{verb}: no such verb{nearest(verb, list(COMMANDS))}")
    module, parser = load_verb(verb)
    return int(module.run(parser.parse_args(arguments)))


def load_verb(verb: str) -> tuple[ModuleType, argparse.ArgumentParser]:
    """Import a verb's module and make its parser."""
    module_name, summary, example = COMMANDS[verb]
    module = import_module(module_name)
    parser = argparse.ArgumentParser(
        f"megabert-data {verb}",
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return module, parser


def _overview() -> str:
    verbs = "\n".join(f"  {verb:8s}{summary}" for verb, (_, summary, _) in COMMANDS.items())
    return f"usage: megabert-data VERB ...\n\n{verbs}\n\n`megabert-data VERB --help` shows options and an example."


def _guarded(run: Callable[[], int]) -> int:
    try:
        code = run()
        sys.stdout.flush()  # else a closed pipe shows only at Python's end
        return code
    except MegabertError as error:
        print(f"megabert-data: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("megabert-data: stopped; the same command continues where it was.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        place = error.filename or "a file"
        print(
            f"megabert-data: error: {place}: {error.strerror or error}. "
            "Check that the path exists, is of the right kind, and may be read and written.",
            file=sys.stderr,
        )
        return DataError.exit_code
