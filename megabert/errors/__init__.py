"""Exception classes, one per cause; each carries the exit code that a shell sees."""


class MegabertError(Exception):
    """Base of every error that a user can mend. The message names place, value and remedy."""

    exit_code = 1
    is_echo: bool | None = None
    """Whether another rank reports this very error already; None: not known, so that rank 0 speaks for all."""


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
