import random
from pathlib import Path

import pytest
import sentencex

from data_prep.extract import sentences as sentences_module
from data_prep.extract.sentences import SMALL_WINDOW, split_sentences

LANGUAGES = Path(__file__).parents[3] / "assets" / "languages.tsv"
SCRIPTS = (
    "\u4eca\u5929\u6c14\u5f88\u597d\u6211\u4eec\u53bb\u516c\u56ed",  # Han
    "\u3053\u3093\u306b\u3061\u306f\u30ab\u30bf\u4eca\u65e5",  # Kana
    "\u1019\u103c\u1014\u103a\u1019\u102c\u1018\u102c\u101e\u102c",  # Myanmar
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",  # Thai
    "\u1797\u17b6\u179f\u17b6\u1781\u17d2\u1798\u17c2\u179a",  # Khmer
    "\u0939\u093f\u0928\u094d\u0926\u0940\u0921\u0949",  # Devanagari, with the abbreviation of doctor
)
STOPS = [*"\u3002\uff01!?.\u0964\u104b\u17d4", "\u3002\u300d", "\u3002\u201d", "\u2026\u2026", "!.", ". "]
OTHERS = [*"\u300c\u300d\u201c\u201d\"'()\uff08\uff09a1/@\u2022 \u3000\u00a0\uff0c`", "Yahoo!", "Yum!", "1.", "1)"]
OTHERS += ["a)", "Dr.", "J.", "p.m.", "etc.", "\u0921\u0949.", "''", "[1]", "januari", "a@b.cc"]
HOSTILE = {
    "words without end": ("en", "A!"),
    "sentences of one letter": ("zh", "\u597d\u3002"),
    "open quotations": ("zh", "\u201c\u597d\u3002"),
    "open double quotations": ("en", "``a. "),
    "marks of two kinds": ("en", "\"a\" ''b'' "),
    "open apostrophes": ("en", "'a "),
    "Italian": ("it", "La casa \u00e8 bella. "),
}


def uncut(text, language):
    return sentencex.segment(language, text)


def random_text(draws):
    letters, stops, others = draws.choice(SCRIPTS), draws.sample(STOPS, 4), draws.sample(OTHERS, 5)
    stop_share, other_share = draws.choice([(0.03, 0.0), (0.03, 0.02), (0.1, 0.1), (0.01, 0.005)])
    parts = []
    for _ in range(draws.randint(50, 1000)):
        kind = draws.random()
        parts.append(
            draws.choice(stops if kind < stop_share else others if kind < stop_share + other_share else letters)
        )
    return "".join(parts)


def test_sentences_of_long_words_are_those_of_the_uncut_text():
    draws, broken = random.Random(0), 0
    for _ in range(300):
        text, language = random_text(draws), draws.choice(["zh", "ja", "en", "hi", "my", "kk", "ru", "it", "th"])
        try:
            expected = uncut(text, language)
        except BaseException:  # it breaks down on some white space
            continue
        assert split_sentences([text], language) == expected, (language, text)
        broken += sentences_module._broken(text)[0] != text
    assert broken > 100


def test_many_paragraphs_have_the_sentences_of_each():
    paragraphs = [random_text(random.Random(seed)).replace(".", "") for seed in range(60)]
    expected = [sentence for paragraph in paragraphs for sentence in uncut(paragraph, "ja")]
    assert split_sentences(paragraphs, "ja") == expected


@pytest.mark.parametrize("joint", [" ", ""])
@pytest.mark.parametrize("window", [1 << 10, 1 << 18])
def test_long_paragraphs_of_every_language_have_the_sentences_of_the_uncut_text(joint, window, monkeypatch):
    monkeypatch.setattr(sentences_module, "WINDOW", window)
    for line in LANGUAGES.read_text(encoding="utf-8").splitlines():
        if line.startswith("th") and window < SMALL_WINDOW:
            continue  # Thai has no full stop, so its only sentence is endless
        language, *texts = line.split("\t")
        text = joint.join(texts * (2 * SMALL_WINDOW // len(line)))
        assert split_sentences([text], language) == uncut(text, language), language


@pytest.mark.parametrize(
    "text",
    [
        "\u4ed6\u8bf4\uff1a\u201c\u4f60\u597d\u3002\u518d\u89c1\uff01\u201d\u7136\u540e\u8d70\u4e86\uff08\u771f\u7684\u3002\u662f\u554a\uff09\u3002",
        "\u201cWho are you? Mr. Smith?\u201d she said. \u00abOui.\u00bb ``So. It is.'' (She left. At 5 p.m. He came.) ",
    ],
    ids=["zh", "en"],
)
def test_marks_that_reach_over_the_end_of_a_window_keep_what_they_enclose(text, monkeypatch):
    for window in range(1000, 1100, 7):
        monkeypatch.setattr(sentences_module, "WINDOW", window)
        assert split_sentences([text * 100], "zh") == uncut(text * 100, "zh")


@pytest.mark.parametrize("name", HOSTILE)
def test_text_that_would_take_the_square_of_its_length_is_read_in_small_windows(name, monkeypatch):
    language, unit = HOSTILE[name]
    calls = []
    monkeypatch.setattr(sentencex, "segment", lambda _, text: calls.append(len(text)) or uncut_segment(language, text))
    text = unit * 20_000
    assert "".join(split_sentences([text], language)) == text
    assert max(calls) <= SMALL_WINDOW


uncut_segment = sentencex.segment


@pytest.mark.parametrize(
    "text", ["\u597d" * 600_000, "word " * 120_000, "\u3002" * 600_000, "e\u0301" * 300_000], ids=range(4)
)
def test_endless_sentence_is_cut(text):
    sentences = split_sentences([text], "en")
    assert "".join(sentences) == text
    assert max(map(len, sentences)) <= sentences_module.WINDOW
    assert not any(sentence.startswith("\u0301") for sentence in sentences)


@pytest.mark.parametrize("language", ["en", "de", "ja", "hi", "xx"])
def test_sentences_do_not_reach_over_the_end_of_a_paragraph(language):
    # Beyond the size at which sentencex looks at parts of a text by themselves.
    long = "He said: \u201cIt is so. " * 600
    paragraphs = ["An \u201copen quotation. It never", "ends. 1) One. 2) Two", "\u662f\u3002\u5426\u3002", long]
    paragraphs += ["(", ". . .", "No."]
    alone = [sentence for paragraph in paragraphs for sentence in sentencex.segment(language, paragraph)]
    assert split_sentences(paragraphs, language) == alone
    assert "".join(alone) == "".join(paragraphs)


@pytest.mark.parametrize(
    ("language", "paragraphs", "expected"),
    [
        ("ko", ["2023. 5. 12. \uad6d\ud68c. \ub05d."], ["2023. 5. 12. \uad6d\ud68c.", "\ub05d."]),
        ("en", ["1. First item. 2. Second item."], ["1. First item.", "2. Second item."]),
        ("en", ["3.", "It was so. 4."], ["3.", "It was so.", "4."]),
    ],
)
def test_numbers_belong_to_the_sentence_after_them(language, paragraphs, expected):
    assert [sentence.strip() for sentence in split_sentences(paragraphs, language)] == expected


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", " \u2009"])
def test_text_on_which_the_splitter_breaks_down_is_split(space):
    paragraphs = [f"So they made plan\u00a0B{space}. It worked.", "Vitamin\u00a0C it was. Yes."]
    plain = [sentence for p in paragraphs for sentence in sentencex.segment("en", p.replace(space[-1], " "))]
    sentences = split_sentences(paragraphs, "en")
    assert "".join(sentences) == "".join(paragraphs)
    assert list(map(len, sentences)) == list(map(len, plain))
    assert len(sentences) > 2
