"""The boundary between a command and the shell: every exception becomes a sentence and an exit code.

Exit codes are listed in docs/troubleshooting.md. A problem that the user can fix (a file that may not be written, a
full disk, too little memory) is one sentence with place and remedy. Everything else is a bug: exit code 1, with its
traceback.
"""

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable

from megabert.foundation.errors import EXIT_INTERRUPTED, ConfigError, DataError, Echo, MegabertError
from megabert.settings.command_line.signals import SIGNALS, Interrupted
from megabert.settings.command_line.terminal import safe_output

EXIT_READER_GONE = 128 + signal.SIGPIPE

_TOO_LONG, _SHOWN = re.compile(r"\S{500,}"), 150
"""Words of a message that are shown in part, such as a path of 6,000 characters or a value of 5,000 digits."""
_NO_MEMORY = re.compile("can't allocate memory|out of memory|size calculation overflowed|multiplication overflow")
"""What torch says in a RuntimeError of a size that no memory has."""
_HALF = 1500
"""Characters of a long message that are shown of its beginning, and of its end."""

_CLOSED = "Change its permissions or owner, or name another place."
_GONE = (
    "The disk does not answer: look at its mount and at the system's log. What was finished is kept; once the disk is "
    "there again, the same command continues."
)
_REMEDIES = {
    errno.EACCES: _CLOSED,
    errno.EPERM: _CLOSED,
    errno.EROFS: "The file system is read-only: name another place.",
    errno.EISDIR: "A file is wanted here, not a folder: name a file.",
    errno.ENOTDIR: "Check that the path exists: a part of it is a file, not a folder.",
    errno.ENOENT: "Check that the path exists, or make what is missing.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ENOSPC: "Free space on that disk, or name a folder on another; the same command continues.",
    errno.EDQUOT: "Your quota is used up: free space, or name a folder on another disk; the same command continues.",
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT), _GONE),
    errno.EPIPE: "The process that reads it has ended: look for its own message above.",
    errno.EMFILE: "Too many files are open: raise the limit (ulimit -n), or take fewer workers.",
}
_OTHER_REMEDY = "Check that the path exists, is of the right kind, and may be read and written."


def as_user_error(error: BaseException) -> MegabertError | None:
    """Return an exception as the error that a user can fix, or None if it is a bug."""
    match error:
        case MegabertError():
            return error
        case OSError():
            place, what = error.filename or "a file", error.strerror or str(error)
            place = os.fsdecode(place) if isinstance(place, bytes) else place
            return DataError(f"{place}: {what}. {_REMEDIES.get(error.errno or 0, _OTHER_REMEDY)}")
        case UnicodeEncodeError():
            what = f"{error.object[error.start : error.end]!a} cannot be written as {error.encoding}"
            return DataError(f"{what}. Set PYTHONIOENCODING=utf-8, or a locale with UTF-8.")
        case UnicodeError():
            return DataError(f"a file is not in the encoding that is expected ({error}). Convert it to UTF-8.")
        case RecursionError():
            return DataError("a file is nested too deeply to be read. Look for a damaged file.")
        case BaseException(__class__=kind) if kind.__name__ == "PanicException":  # a library in Rust gave up
            what = " ".join(str(error).split())[:300]
            return DataError(f"a file, perhaps of the tokenizer, cannot be read by its library ({what}). Replace it.")
        case MemoryError() | RuntimeError() if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            return ConfigError("memory is used up. Take fewer workers or smaller batches, or a larger machine.")
    return None


def exit_code_of(error: BaseException) -> int:
    """Return the code with which a command that ends by an exception leaves: 1 for a bug."""
    if isinstance(error, KeyboardInterrupt):
        return error.exit_code if isinstance(error, Interrupted) else EXIT_INTERRUPTED
    known = as_user_error(error)
    return 1 if known is None else known.exit_code


def guarded(run: Callable[[], int | None], *, program: str, rank_label: Callable[[], str]) -> int:
    """Run a command; print its error, if any, as a shell's user reads it.

    Args:
        run: The command; returns its exit code, None for 0.
        program: Name that is put before every message.
        rank_label: Returns ``[rank N] `` in a rank other than 0, else nothing.

    Returns:
        Exit code.
    """
    with safe_output():
        try:
            code = run() or 0
            sys.stdout.flush()  # else a closed pipe or a full disk shows only at Python's end
            if SIGNALS.received is not None:  # and the exception was lost on its way
                raise Interrupted(SIGNALS.received)
            return code
        except BaseException as error:
            _drop_output()
            # Whatever else goes wrong while a command ends by a signal follows from that.
            cause = error if SIGNALS.received is None else Interrupted(SIGNALS.received)
            try:
                return _reported(cause, program=program, rank_label=rank_label)
            except BrokenPipeError:  # nobody reads the report either
                return EXIT_READER_GONE
        finally:
            SIGNALS.close()


def _drop_output() -> None:
    """Flush the output; if nobody reads it, drop it, or Python complains once more at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reported(error: BaseException, *, program: str, rank_label: Callable[[], str]) -> int:
    """Print the error that ended a command, and return its exit code."""
    match error:
        case BrokenPipeError(filename="standard output" | "standard error"):  # the reader, such as head, has enough
            return EXIT_READER_GONE
        case KeyboardInterrupt():
            print(f"{program}: {SIGNALS.words()}", file=sys.stderr)
            return exit_code_of(error)
        case Echo():  # another rank reports it
            return error.exit_code
        case SystemExit() | GeneratorExit():
            raise error
        case _:
            label, known = rank_label(), as_user_error(error)
            if known is None:
                print(f"{label}{program}: a bug:", file=sys.stderr)
                traceback.print_exception(error)
                return 1
            print(f"{label}{program}: {type(known).__name__}: {_readable(str(known))}", file=sys.stderr)
            return known.exit_code


def _readable(message: str) -> str:
    """Return a message without the middle of words and lists that nobody would read to their end."""
    text = _TOO_LONG.sub(lambda word: f"{word[0][:_SHOWN]}...{word[0][-_SHOWN:]}", message)
    surplus = len(text) - 2 * _HALF
    if surplus > 0:  # the beginning has the place, the end has the remedy
        text = f"{text[:_HALF]}\n  ... {surplus:,} characters more ...\n{text[-_HALF:]}"
    return text
