"""WordPiece's own loops against the library, for every character that they encode themselves."""

import random

import numpy as np
import pytest
from unit.tokens.tokenization.conftest import encoded, library_ids

from megabert.tokens.tokenization import Tokenizer
from megabert.tokens.tokenization.character_kinds import LETTER, SINGLE
from megabert.tokens.tokenization.characters import character_kinds
from megabert.tokens.tokenization.tokenizer_kinds import WORDPIECE, TextOptions, build_backend

OPTIONS = {
    "cased": TextOptions(),
    "uncased": TextOptions(do_lower_case=True, strip_accents=True),
    "uncased_composed": TextOptions(do_lower_case=True, strip_accents=True, compose=True),
    "accents_kept": TextOptions(do_lower_case=True, tokenize_chinese_chars=False),
}
AROUND = (
    "ab\u0301 \u3002\u4e00\u304b\u3099\ud55c\u1161\u11a8\u09cb\u09be\u2019\u0130\u03a3\u01c5\u200d\u3000.<\u0338\ufe00"
    "\U00020000"
)


@pytest.fixture(scope="module", params=OPTIONS)
def tokenizer(request):
    options = OPTIONS[request.param]
    kinds = character_kinds(build_backend({name: i for i, name in enumerate(WORDPIECE.names)}, options), options)
    characters = [chr(code) for code in np.flatnonzero(kinds).tolist() if not 0xD800 <= code < 0xE000]
    # Each other character is a piece, and each other one of these inside a word, so that words are known and unknown.
    pieces = [*WORDPIECE.names, *"ab", "##a", "##b", *characters[::2], *(f"##{one}" for one in characters[::4])]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    return Tokenizer(build_backend(vocabulary, options)), characters, kinds


def test_every_character_has_the_ids_of_the_library_whatever_is_around_it(tokenizer):
    tokenizer, characters, _ = tokenizer
    draws = random.Random(0)
    texts = [
        "".join([one, draws.choice(AROUND), one, draws.choice(AROUND), draws.choice(characters)]) for one in characters
    ]
    assert encoded(tokenizer, texts) == library_ids(tokenizer, texts)


def test_words_of_any_length_have_the_ids_of_the_library(tokenizer):
    tokenizer, characters, _ = tokenizer
    draws = random.Random(1)
    known = characters[::4]
    texts = ["".join(draws.choices([*known, *"ab. "], k=draws.randrange(1, 400))) for _ in range(600)]
    texts += [draws.choice(known) * size for size in range(1, 120)]  # more than a hundred characters are one [UNK]
    assert encoded(tokenizer, texts) == library_ids(tokenizer, texts)


def test_most_text_needs_no_look_up(tokenizer):
    tokenizer, characters, kinds = tokenizer
    assert np.count_nonzero(kinds == LETTER) > 1000
    assert np.count_nonzero(kinds == SINGLE) > 100
    tokenizer.forget_spans()
    letters = [one for one in characters if kinds[ord(one)] == LETTER]
    tokenizer.encode_batch(["".join(letters[start : start + 20]) for start in range(0, len(letters), 20)])
    assert len(tokenizer._spans) < 50
