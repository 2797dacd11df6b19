"""Exception classes, one per cause, and the exit codes that a shell sees: each class carries its own.

Messages are shown and written, so addresses in them lose a name and a password, and a signature.
"""

import re

GUIDE = "docs/troubleshooting.md"

EXIT_HOPELESS = 70
"""EX_SOFTWARE of sysexits.h: the watchdog ended the run once too often without a newer checkpoint."""
EXIT_STOPPED = 75
"""EX_TEMPFAIL: saved and stopped on request; the same command continues."""
EXIT_HUNG = 76
"""EX_PROTOCOL: the watchdog ended a hang; the same command continues at the last checkpoint."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as a shell reports SIGINT."""
EXIT_KILLED = 137
"""SIGKILL, as a shell reports it: a rank whose launcher is dead."""
_LOGIN = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"/]*@")
"""An address with a name or a password before its server, as HF_ENDPOINT may have."""
_QUERY = re.compile(r"(https?://[^\s'\"?]*)\?[^\s'\"]*")
"""An address with a query. In a storage, the query has a signature that lets anybody read or write the file."""


class MegabertError(Exception):
    """Base of every error that a user can fix. The message names place, value and remedy;
    passwords and signatures of addresses are cut out of it.

    Args:
        message: The problem, its place, and the remedy.
        see: Heading of docs/troubleshooting.md, as an anchor, that explains more.
    """

    exit_code = 1

    def __init__(self, message: str = "", *, see: str | None = None) -> None:
        super().__init__(without_secrets(message))
        self.see = see

    def __str__(self) -> str:
        """Return the message, with the place that explains more."""
        message = super().__str__()
        return message if self.see is None else f"{message}\n  More: {GUIDE}#{self.see}"


class ConfigError(MegabertError):
    """A recipe, flag or engine file asks for something impossible or contradictory."""

    exit_code = 2


class DataError(MegabertError):
    """Input text, a shard, a manifest or a tokenizer is missing, damaged or unfit."""

    exit_code = 3


class HaltedError(DataError):
    """The work was cut short by something other than its input: a full disk, a killed worker, a lost file of ours.

    A data build tells it from a refusal of its corpus: the same command continues, and nothing is to be begun anew.
    """


class CheckpointError(MegabertError):
    """A checkpoint or run folder is missing, damaged, locked or from another configuration."""

    exit_code = 4


class KernelError(MegabertError):
    """A requested op backend cannot run here."""

    exit_code = 5


class Echo(MegabertError):
    """The error of another rank, which reports it: this rank ends with the same exit code and prints nothing.

    A failure of one rank has to end all of them, but a user should read it once. So exactly one rank raises the error
    itself, and every other rank raises its echo.

    Args:
        cause: The error of the other rank.
    """

    def __init__(self, cause: MegabertError) -> None:
        super().__init__()
        self.args = (cause,)  # what pickle restores it from, and what str() shows
        self.cause, self.exit_code = cause, cause.exit_code


def cause_of(error: BaseException) -> BaseException:
    """Return the error that an echo repeats; any other error is its own cause."""
    return error.cause if isinstance(error, Echo) else error


def without_secrets(text: str) -> str:
    """Return a text with each address in it cut to what may be shown and written."""
    return _LOGIN.sub(r"\1", _QUERY.sub(r"\1", text))
