"""Refuses one text in place of a list, and halves of surrogate pairs, before texts are tokenized."""

from collections.abc import Iterable, Sequence

from megabert.foundation.errors import ConfigError, DataError


def refuse_single_text(texts: Sequence[str]) -> None:
    """Refuse one text in place of a list, whose characters would be the texts.

    Raises:
        ConfigError: It is one text.
    """
    if isinstance(texts, str):
        raise ConfigError(f"{texts!r:.60} is one text. Give a list of texts.")


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
