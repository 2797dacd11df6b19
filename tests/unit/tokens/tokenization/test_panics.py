import pytest

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization.tokenizer_kinds import panics_as_errors

Panic = type("PanicException", (BaseException,), {})
"""Stands for pyo3's, which is made anew by each library."""


def test_panic_of_a_library_is_an_error_with_its_place():
    with (
        pytest.raises(
            DataError, match=r"a/tokenizer\.json: `tokenizers` broke down on it \(index out of bounds\)\. Fetch"
        ),
        panics_as_errors("a/tokenizer.json"),
    ):
        raise Panic("index out of bounds")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_everything_else_passes(error):
    with pytest.raises(error), panics_as_errors("a"):
        raise error
