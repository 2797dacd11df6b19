"""Where a part of a text ends whose last character has marks after it."""

import unicodedata

from megabert.tokens.tokenization.composition import past_marks


def test_accents_and_the_rest_of_a_decomposed_syllable_belong_to_the_character_before_them():
    korean = unicodedata.normalize("NFD", "\ud55c\uac15 \ubb3c")  # the second syllable ends before the space
    assert past_marks(korean, korean.index(" ") - 2) == korean.index(" ")
    assert past_marks(unicodedata.normalize("NFD", "caf\u00e9s"), 4) == 5
    assert past_marks("cafes", 4) == 4
    assert past_marks("cafe", 4) == 4
