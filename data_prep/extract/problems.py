"""What of the input cannot be used: counted by kind with the first examples, or fatal where nothing may be dropped."""

from collections import Counter

from megabert.errors import DataError

EXAMPLES = 3
MAX_EXAMPLE_CHARACTERS = 300


class Problems:
    """Takes note of what cannot be used of one chunk."""

    def __init__(self, *, is_strict: bool = True) -> None:
        """Start empty.

        Args:
            is_strict: Whether a document that cannot be read is an error.
        """
        self.is_strict = is_strict
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    @property
    def is_cut(self) -> bool:
        """Whether the file ended too early or in damage."""
        return "cut_files" in self.counts or "damaged_files" in self.counts

    def count(self, kind: str) -> None:
        """Count something that is no problem but should be known, such as a redirect."""
        self.counts[kind] += 1

    def add(self, kind: str, message: str) -> None:
        """Count a problem that is never fatal, such as a cut end, and remember the first messages."""
        self.count(kind)
        self.give_example(kind, message)

    def give_example(self, kind: str, message: str) -> None:
        """Remember a message, where it is one of the first of its kind."""
        examples = self.examples.setdefault(kind, [])
        if len(examples) < EXAMPLES:
            examples.append(message[:MAX_EXAMPLE_CHARACTERS])

    def require(self, kind: str, message: str, remedy: str) -> None:
        """Count a document that cannot be read.

        Raises:
            DataError: Where the build may not drop documents (``max_bad_share`` is 0).
        """
        if self.is_strict:
            raise DataError(f"{message}. {remedy}")
        self.add(kind, message)
