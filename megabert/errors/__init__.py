"""Exception classes, one per cause; each carries the exit code that a shell sees."""

GUIDE = "docs/troubleshooting.md"


class MegabertError(Exception):
    """Base of every error that a user can mend. The message names place, value and remedy.

    Args:
        message: What is wrong, where, and what to do.
        see: Heading of docs/troubleshooting.md, as an anchor, where more stands.
    """

    exit_code = 1
    is_echo: bool | None = None
    """Whether another rank reports this very error already; None: not known, so that rank 0 speaks for all."""

    def __init__(self, message: str = "", *, see: str | None = None) -> None:
        super().__init__(message)
        self.see = see

    def __str__(self) -> str:
        """Return the message, with the place where more stands."""
        message = super().__str__()
        return message if self.see is None else f"{message}\n  More: {GUIDE}#{self.see}"


class ConfigError(MegabertError):
    """A recipe, flag or engine file asks for something impossible or contradictory."""

    exit_code = 2


class DataError(MegabertError):
    """Input text, a shard, a manifest or a tokenizer is missing, damaged or unfit."""

    exit_code = 3


class CheckpointError(MegabertError):
    """A checkpoint or run folder is missing, damaged, locked or from another configuration."""

    exit_code = 4


class KernelError(MegabertError):
    """A requested op backend cannot run here."""

    exit_code = 5
