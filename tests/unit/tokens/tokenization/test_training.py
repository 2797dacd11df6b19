import os
import subprocess
import sys
import unicodedata

import pytest

from megabert.foundation.errors import ConfigError, DataError
from megabert.tokens.tokenization.alphabet import choose_alphabet
from megabert.tokens.tokenization.training import train_byte_bpe_on, train_wordpiece, train_wordpiece_on

TRAIN = """
import sys
from megabert.tokens import tokenization
words = [chr(97 + i % 26) * (i % 7 + 1) + chr(97 + i * 7 % 26) + chr(97 + i * 5 % 26) for i in range(4000)]
for train in sys.argv[1:]:
    print(getattr(tokenization, train)([" ".join(words[start::13]) for start in range(13)], vocab_size=400).sha256)
"""


def has_jamo(text):
    return any(0x1100 <= ord(character) <= 0x11FF for character in text)


def test_vocabulary_has_the_wanted_size_and_begins_with_special_pieces(cased):
    assert cased.vocab_size == 2000
    assert cased.pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(set(cased.pieces)) == 2000


def test_case_and_accents_are_kept_by_default():
    tokenizer = train_wordpiece(["\u00c9cole \u00c9cole \u00e9cole"], vocab_size=100)
    assert tokenizer.normalize("\u00c9COLE") == "\u00c9COLE"
    assert "\u00c9" in tokenizer.vocab


def test_uncased_lower_cases_and_strips_accents(uncased):
    assert uncased.normalize("\u00c9COLE na\u00efve") == "ecole naive"
    assert not any(piece.isupper() for piece in uncased.pieces[5:])


@pytest.mark.parametrize("is_cased", [True, False])
def test_hangul_is_never_split_into_jamo(is_cased, korean_texts):
    tokenizer = train_wordpiece(korean_texts, vocab_size=6000, cased=is_cased)
    assert not any(has_jamo(piece) for piece in tokenizer.pieces)
    assert tokenizer.normalize("\ud55c\uad6d\uc5b4") == "\ud55c\uad6d\uc5b4"
    joined = tokenizer.decode(tokenizer.encode("\ub300\ud55c\ubbfc\uad6d")).replace(" ", "")
    assert joined == "\ub300\ud55c\ubbfc\uad6d"


def test_uncased_with_hangul_still_strips_accents_elsewhere(uncased_korean):
    assert uncased_korean.normalize("\u00c9COLE \ud55c\uae00 \u1112\u1161\u11ab") == "ecole \ud55c\uae00 \ud55c"


def test_decomposed_text_gives_the_vocabulary_of_composed_text(korean_texts):
    texts = korean_texts[:40]
    decomposed = [unicodedata.normalize("NFD", text) for text in texts]
    assert has_jamo(decomposed[0])
    tokenizer = train_wordpiece(decomposed, vocab_size=4000)
    assert tokenizer.sha256 == train_wordpiece(texts, vocab_size=4000).sha256


def test_every_character_is_kept_where_there_is_room(korean_texts):
    tokenizer = train_wordpiece(korean_texts, vocab_size=8000)
    characters = {
        c for text in korean_texts for c in tokenizer.normalize(unicodedata.normalize("NFC", text)) if c != " "
    }
    assert len(characters) > 700
    assert characters <= set(tokenizer.vocab)


def test_ids_depend_neither_on_threads_nor_on_the_process_and_its_hash_seed():
    command, hashes = [sys.executable, "-c", TRAIN, "train_wordpiece", "train_byte_bpe", "train_unigram"], set()
    for number in ("1", "2", "4"):
        own = dict.fromkeys(("PYTHONHASHSEED", "OMP_NUM_THREADS", "RAYON_NUM_THREADS"), number)
        environment = os.environ | own | {"TOKENIZERS_PARALLELISM": "true"}
        hashes.add(subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=60, check=True).stdout)
    assert len(hashes) == 1


def test_ids_depend_neither_on_order_nor_on_cutting_of_the_text(english_texts):
    whole = train_wordpiece(english_texts, vocab_size=1000)
    paragraphs = [line for text in reversed(english_texts) for line in text.split("\n\n")]
    assert train_wordpiece(paragraphs, vocab_size=1000).sha256 == whole.sha256


def test_a_small_text_gives_fewer_pieces():
    assert train_wordpiece(["ab ab ab"], vocab_size=100).pieces[5:] == ["a", "b", "##a", "##b", "ab"]


def test_crowded_alphabets_keep_the_most_frequent_characters():
    words = {chr(0x4E00 + index): 1_000_000 // (index + 1) ** 2 for index in range(900)}
    initial, _ = choose_alphabet(words.items(), capacity=1000)
    assert 0.9999 <= sum(words[character] for character in initial) / sum(words.values()) < 1
    assert set(initial) == {chr(0x4E00 + index) for index in range(len(initial))}
    assert len(choose_alphabet(words.items(), capacity=2000)[0]) == 900


def test_too_many_characters_for_the_size_are_refused():
    words = {chr(0x4E00 + index): 5 for index in range(900)}
    with pytest.raises(DataError, match=r"Raise vocab_size to 1,800 or more"):
        choose_alphabet(words.items(), capacity=500)


def test_text_without_words_and_impossible_sizes_are_refused():
    with pytest.raises(DataError, match="no words"):
        train_wordpiece(["", "  \n"], vocab_size=100)
    with pytest.raises(ConfigError, match="vocab_size"):
        train_wordpiece(["a b"], vocab_size=5)


def test_training_says_what_begins():
    words = [(f"word{number}", 9) for number in range(30)]
    said: list[str] = []
    train_wordpiece_on(words, vocab_size=100, notify=said.append)
    assert said == [
        "words are normalised and split at punctuation",
        "30 words are read by the trainer, then pieces are learned",
    ]
    train_byte_bpe_on(((f" {word}", count) for word, count in words), vocab_size=300, notify=said.append)
    assert said[2:] == ["words are read by the trainer, then pieces are learned"]
