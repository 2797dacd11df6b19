"""Ids of the fast tokenizer against the library's on 28 languages, adversarial Unicode and random code points."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
import tokenizers
from support.soak import in_soak
from unit.tokens.tokenization.test_tokenizer import AWKWARD, LITERALS, random_text

from megabert.tokens.tokenization.training import train_wordpiece

LANGUAGES = Path(__file__).parents[3] / "assets" / "languages.tsv"
SEPARATORS = [" "] * 12 + ["  ", "\t", "\n", "\u00a0", "\u3000", "\u2028", "-", "", "/", "\u200b"]
# Combining marks, joiners, directions, controls, a ligature, half of a syllable, digits, emoji, private use.
INTRUDERS = (
    "\u0301\u0308\u0345\u200c\u200d\u202e\x00\x7f\x85\xad\ufeff\ufffd\ufb03\u1100\uff21\u0664\u2167"
    "\U0001f3fd\U0001f1e9\ue000\U000e0001\U0010fffd"
)


@pytest.fixture(scope="module")
def languages():
    return [line.split("\t") for line in LANGUAGES.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def stress_lines(languages):
    """About 7,600 lines, the same in every run."""
    generator = random.Random(26)
    lines = [line for _, *lines in languages for line in lines]
    words = [word for line in lines for word in line.split()]

    def sentence():
        return "".join(
            generator.choice(words) + generator.choice(SEPARATORS) for _ in range(generator.randrange(1, 12))
        )

    def spoilt(text):
        for _ in range(generator.randrange(1, 4)):
            place = generator.randrange(len(text) + 1)
            text = text[:place] + generator.choice(INTRUDERS) + text[place:]
        return text

    return [
        *lines,
        *(line.upper() for line in lines),
        *AWKWARD,
        *LITERALS,
        *(sentence() for _ in range(2500)),
        *(spoilt(sentence()) for _ in range(2500)),
        *(random_text(generator) for _ in range(2500)),
    ]


@pytest.fixture(scope="module")
def multilingual(languages):
    return train_wordpiece([line for _, *lines in languages for line in lines], vocab_size=2500)


@pytest.fixture(scope="module")
def multilingual_uncased(languages):
    return train_wordpiece([line for _, *lines in languages for line in lines], vocab_size=2500, cased=False)


def test_set_covers_the_languages(languages):
    assert len({code for code, *_ in languages}) >= 26
    assert all(len(lines) == 2 for _, *lines in languages)


@pytest.mark.parametrize(
    "name", ["multilingual", "uncased_korean", *in_soak("multilingual_uncased", "minilm", "cased")]
)
def test_ids_equal_those_of_the_library_on_every_line(name, stress_lines, request):
    tokenizer = request.getfixturevalue(name)
    plain = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    plain.encode_special_tokens = True
    wanted = [encoding.ids for encoding in plain.encode_batch_fast(stress_lines, add_special_tokens=False)]
    for lines in (stress_lines, pa.array(stress_lines).slice(7, 3000)):  # new chunks, then known ones of a slice
        found = [ids.tolist() for ids in tokenizer.encode_batch(lines)]
        expected = wanted if len(lines) == len(wanted) else wanted[7:3007]
        unlike = [index for index, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other]
        assert unlike == []
    assert sum(tokenizer.special_ids.unk not in ids for ids in wanted) > 200  # not everything is [UNK]
