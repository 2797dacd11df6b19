"""Problems of the input: counts of the text that could not be used, with the first few messages of each kind."""

from collections import Counter

from megabert.foundation.errors import DataError, without_secrets

MAX_DOCUMENT_BYTES = 32 << 20
"""Longer documents are left out and counted: they would take a worker's memory."""
EXAMPLES = 3
"""Messages of each kind that are shown."""
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
        self.lost_bytes = 0
        """Stored bytes that follow the damage in files."""

    @property
    def is_cut(self) -> bool:
        """Whether the file ended too early or in damage."""
        return "cut_files" in self.counts or "damaged_files" in self.counts

    def lose_end(self, kind: str, message: str, lost_bytes: int = 0) -> None:
        """Count a file whose end cannot be read, and the stored bytes that are lost with it, as far as they are there.

        Raises:
            DataError: Where the build may not lose documents (``max_bad_share`` is 0).
        """
        self.require(kind, message, "Fetch the file again, or use what can be read with --max-bad-share above 0.")
        self.lost_bytes += lost_bytes

    def count(self, kind: str) -> None:
        """Count something that is no problem but should be known, such as a redirect."""
        self.counts[kind] += 1

    def add(self, kind: str, message: str) -> None:
        """Count a problem that is never fatal, such as a document that is too long; remember the first messages."""
        self.count(kind)
        self.give_example(kind, message)

    def oversized(self, path: str, where: str) -> None:
        """Count a document above ``MAX_DOCUMENT_BYTES``."""
        self.add("oversized_documents", f"{path}: the document {where} is above {MAX_DOCUMENT_BYTES >> 20} MiB")

    def give_example(self, kind: str, message: str) -> None:
        """Remember a message if it is one of the first of its kind."""
        if self.lacks_examples(kind):
            self.examples.setdefault(kind, []).append(without_secrets(message)[:MAX_EXAMPLE_CHARACTERS])

    def lacks_examples(self, kind: str) -> bool:
        """Return whether another message of a kind would be remembered."""
        return len(self.examples.get(kind, ())) < EXAMPLES

    def shows(self, kind: str) -> bool:
        """Return whether the next problem of a kind would be shown."""
        return self.is_strict or self.lacks_examples(kind)

    def require(self, kind: str, message: str, remedy: str) -> None:
        """Count a document that cannot be read.

        Raises:
            DataError: Where the build may not drop documents (``max_bad_share`` is 0).
        """
        if self.is_strict:
            raise DataError(f"{message}. {remedy}")
        self.add(kind, message)
