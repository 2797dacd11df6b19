"""Ids of the fast tokenizer against the library's on 28 languages, adversarial Unicode and random code points."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from support.soak import in_soak
from unit.tokens.tokenization.conftest import encoded, library_ids
from unit.tokens.tokenization.test_tokenizer import LITERALS

from megabert.tokens.tokenization.training import train_wordpiece

LANGUAGES = Path(__file__).parents[3] / "assets" / "languages.tsv"
SEPARATORS = [" "] * 12 + ["  ", "\t", "\n", "\u00a0", "\u3000", "\u2028", "-", "", "/", "\u200b"]
# Combining marks, joiners, directions, controls, a ligature, half of a syllable, digits, emoji, private use.
INTRUDERS = (
    "\u0301\u0308\u0345\u200c\u200d\u202e\x00\x7f\x85\xad\ufeff\ufffd\ufb03\u1100\uff21\u0664\u2167"
    "\U0001f3fd\U0001f1e9\ue000\U000e0001\U0010fffd"
)


AWKWARD = [
    "",
    " ",
    "  two  spaces ",
    "tab\tnew\nline\rfeed\x0bvertical\x85next",
    "x" * 101 + " " + "y" * 100,
    "a\u0301 \u0301a",
    "\u03a3\u0391\u03a3 \u03a3",
    "\u00a0no\u2028break\u3000wide",
    "soft\u00adhyphen\u200bzero\ufeffmark",
    "\u4e2d\u6587a\u5b57",
    "don't do not ... ?!",
    "\U0001f600 \U0001f468\u200d\U0001f469",
    "\u0130stanbul \u00df \ufb01",
    "\u1112\u1161\u11ab \ud55c\uae00",
]


def random_text(generator):
    kinds = [(32, 127), (0, 0x3000), (0xAC00, 0xD7A4), (0x300, 0x370), (0xE000, 0x110000), (32, 33), (9, 14)]
    return "".join(chr(generator.randrange(*generator.choice(kinds))) for _ in range(generator.randrange(50)))


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
def trained(languages):
    """Return a function that trains on all languages."""
    assert len({code for code, *_ in languages}) >= 26
    return lambda **case: train_wordpiece([line for _, *lines in languages for line in lines], vocab_size=2500, **case)


@pytest.fixture(scope="module")
def multilingual(trained):
    return trained()


@pytest.fixture(scope="module")
def multilingual_uncased(trained):
    return trained(cased=False)


@pytest.mark.parametrize(
    "name", ["multilingual", "uncased_korean", *in_soak("multilingual_uncased", "minilm", "cased")]
)
def test_ids_equal_those_of_the_library_on_every_line(name, stress_lines, request):
    tokenizer = request.getfixturevalue(name)
    wanted = library_ids(tokenizer, stress_lines)
    for lines in (stress_lines, pa.array(stress_lines).slice(7, 3000)):  # new chunks, then known ones of a slice
        found = encoded(tokenizer, lines)
        expected = wanted if len(lines) == len(wanted) else wanted[7:3007]
        unlike = [index for index, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other]
        assert unlike == []
    assert sum(tokenizer.special_ids.unk not in ids for ids in wanted) > 200  # not everything is [UNK]
