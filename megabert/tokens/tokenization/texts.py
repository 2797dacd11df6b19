"""Refuses halves of surrogate pairs, before texts are tokenized."""

from collections.abc import Iterable

from megabert.foundation.errors import DataError


def refuse_surrogates(texts: Iterable[str]) -> None:
    """Refuse half of a surrogate pair, which UTF-8 cannot hold; an escape in JSON may make one.

    Raises:
        DataError: A text has one.
    """
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"texts[{number}]: the character at {error.start} is half of a surrogate pair "
                f"(U+{ord(text[error.start]):04X}). Decode the text with errors='replace', or remove it."
            ) from None
