import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from data_prep.vocabulary.quality import require_bars
from data_prep.vocabulary.training import VocabularyOptions, check_vocabulary, train_vocabulary
from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import load_tokenizer, train_unigram
from megabert.tokens.tokenization.training import train_wordpiece

CORPORA = Path(__file__).resolve().parents[4] / "examples" / "corpus"


def read_documents(name):
    with open(CORPORA / name, encoding="utf-8") as lines:
        return [(document["id"], document["text"]) for document in map(json.loads, lines)]


@pytest.fixture(scope="module")
def korean():
    return read_documents("korean.jsonl")


@pytest.fixture(scope="module")
def english():
    return read_documents("public_domain.jsonl")[::4]


@pytest.mark.parametrize("name", ["korean.jsonl", "public_domain.jsonl"])
def test_bundled_corpora_are_what_their_readme_says(name):
    data = (CORPORA / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() in (CORPORA / "README.md").read_text(encoding="utf-8")
    documents = [json.loads(line) for line in data.decode("utf-8").splitlines()]
    assert len({document["id"] for document in documents}) == len(documents)
    for document in documents:
        assert list(document) == ["id", "title", "text", "source"]
        assert all(paragraph.strip() and "\n" not in paragraph for paragraph in document["text"].split("\n\n"))


@pytest.mark.parametrize(
    ("name", "vocab_size", "uncased"), [("korean.jsonl", 8192, False), ("public_domain.jsonl", 4096, True)]
)
def test_the_bars_hold_on_both_bundled_corpora(name, vocab_size, uncased):
    options = VocabularyOptions(vocab_size=vocab_size, uncased=uncased)
    tokenizer, report = train_vocabulary(read_documents(name), options)
    require_bars(report)
    assert tokenizer.vocab_size == report.vocab_size == vocab_size
    assert report.is_held_out
    assert report.held_out_words > 5000
    assert report.unknown_words_pct <= 0.5
    assert report.coverage_pct >= 99.95
    assert report.held_out_coverage_pct > 99.8
    assert report.round_trip_pct > 95
    assert report.split_hangul_pct == 0
    assert 1 < report.pieces_per_word < 3
    assert not any(0x1100 <= ord(character) <= 0x11FF for piece in tokenizer.pieces for character in piece)


def test_the_bars_do_not_hang_on_which_documents_are_held_out(korean):
    _, report = train_vocabulary(korean[::2], VocabularyOptions(vocab_size=4096, seed=1))
    require_bars(report)


def test_too_many_unknown_words_are_refused(english):
    _, report = train_vocabulary(english, VocabularyOptions(vocab_size=1000))
    with pytest.raises(DataError, match=r"of held-out words become \[UNK\], allowed is 0.5%"):
        require_bars(replace(report, unknown_words_pct=0.51))


def test_the_stock_uncased_tokenizer_is_refused_for_korean_and_not_for_english(minilm_folder, korean, english):
    stock = load_tokenizer(minilm_folder)
    report = check_vocabulary(stock, korean, VocabularyOptions())
    assert report.split_hangul_pct > 50
    with pytest.raises(DataError, match=r"(?s)^bert-base-uncased: .*into jamo"):
        require_bars(report, where="bert-base-uncased")
    require_bars(check_vocabulary(stock, english, VocabularyOptions()))


def test_held_out_documents_are_not_trained_on():
    documents = [(f"document-{number}", f"common words and word{number}unique{number}") for number in range(400)]
    _, report = train_vocabulary(documents, VocabularyOptions(vocab_size=2000))
    assert 5 <= report.held_out_documents <= 40
    assert report.held_out_documents + report.trained_documents == 400


def test_held_out_documents_depend_on_ids_and_seed_alone(english):
    options = VocabularyOptions(vocab_size=1000)
    first, report = train_vocabulary(english, options)
    second, again = train_vocabulary(reversed(english), options)
    assert first.sha256 == second.sha256
    assert report.held_out_words == again.held_out_words
    other = check_vocabulary(first, english, VocabularyOptions(seed=1))
    assert other.held_out_words != report.held_out_words


def test_an_existing_tokenizer_is_measured_like_a_trained_one_and_the_figures_are_printed(english):
    options = VocabularyOptions(vocab_size=1000)
    tokenizer, report = train_vocabulary(english, options)
    assert check_vocabulary(tokenizer, english, options) == report
    printed = "\n".join(report.lines())
    for words in ("1,000 pieces", "held-out documents", "[UNK]", "pieces per word", "round trip", "coverage"):
        assert words in printed
    assert json.loads(json.dumps(asdict(report)))["vocab_size"] == 1000


def test_a_word_with_several_unknown_parts_is_one_unknown_word():
    tokenizer = train_unigram(["a b c ab ba"] * 9, vocab_size=64)
    report = check_vocabulary(tokenizer, [("only", "a\u2603b\u2603c\u2603 ab a")], VocabularyOptions())
    assert report.unknown_words_pct == pytest.approx(100 / 3)


def test_pieces_of_a_clause_are_counted_where_words_have_no_spaces():
    clauses = ["\u732b\u304c\u9cf4\u304f", "\u72ac\u304c\u5bdd\u308b"]
    text = " ".join(clauses) + " " + clauses[0] + "\u96ea" + clauses[1]  # the last clause has an unknown character
    tokenizer = train_unigram([" ".join(clauses)] * 9, vocab_size=64)
    ids = tokenizer.encode(text).tolist()
    assert ids.count(tokenizer.special_ids.unk) == 1
    assert check_vocabulary(tokenizer, [("only", text)], VocabularyOptions()).unknown_words_pct == pytest.approx(
        100 / len(ids)
    )
    wordpiece = train_wordpiece(["\u3044\u306c \u306d\u3053"], vocab_size=64)  # too rare to be merged: two pieces each
    report = check_vocabulary(
        wordpiece, [("only", "\u3044\u306c \u306d\u3053 \u306d\u3080\u3053")], VocabularyOptions()
    )
    assert report.unknown_words_pct == pytest.approx(100 / 3), "WordPiece loses the whole word"


def test_unknown_words_are_counted():
    tokenizer = train_wordpiece(["ab ab abab"] * 9, vocab_size=100)
    report = check_vocabulary(tokenizer, [("only", "ab abz ab zz\nab ab")], VocabularyOptions())
    assert report.unknown_words_pct == pytest.approx(100 * 2 / 6)
    assert report.pieces_per_word == 1
    assert report.coverage_pct == report.held_out_coverage_pct == pytest.approx(100 * 10 / 13)
    assert report.round_trip_pct == 50
    assert report.frequent_unknown == ("abz", "zz")
    assert not report.is_held_out
    assert "TRAINED" in "\n".join(report.lines())
