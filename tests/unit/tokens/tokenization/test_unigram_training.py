"""Unigram vocabularies that are trained here: the same ids for any threads and order, and transformers' ids."""

import pickle
import random
import unicodedata

import pytest
import transformers
from unit.tokens.tokenization.conftest import encoded

from megabert.foundation.errors import ConfigError, DataError
from megabert.tokens.tokenization import load_tokenizer, save_huggingface, train_unigram, unigram_training
from megabert.tokens.tokenization.written import readable_pieces, written_pieces

TEXT = "The whale swims in the sea, and the sailors saw the whales swimming. " * 3


@pytest.fixture(scope="module")
def trained(english_texts):
    return train_unigram(english_texts, vocab_size=1200)


def test_special_pieces_come_first_and_the_size_is_the_wanted_one(trained):
    assert trained.kind.name == "unigram"
    assert trained.pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(set(trained.pieces)) == trained.vocab_size == 1200


def test_order_of_the_documents_changes_no_id(trained, english_texts):
    shuffled = list(english_texts)
    random.Random(1).shuffle(shuffled)
    assert train_unigram(shuffled, vocab_size=1200).sha256 == trained.sha256


def test_a_text_that_spells_sentencepieces_unknown_piece_keeps_it():
    tokenizer = train_unigram([TEXT + "A senator <unk> met a <unk>. " * 5], vocab_size=80)
    assert tokenizer.decode(tokenizer.encode("<unk> met")) == "<unk> met"
    assert tokenizer.special_ids.unk not in tokenizer.encode("<unk>")


def test_transformers_gives_the_same_ids(trained, tmp_path, english_texts):
    save_huggingface(trained, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [*english_texts[:5], " two  spaces\n\nand lines ", "na\u00efve \u2603 snow", ""]
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert encoded(trained, texts) == expected
    assert theirs("a whale", "the sea")["input_ids"].count(trained.special_ids.sep) == 2
    again = load_tokenizer(tmp_path)
    assert again.sha256 == trained.sha256 == pickle.loads(pickle.dumps(again)).sha256


def test_text_is_composed_and_comes_back(korean_texts):
    tokenizer = train_unigram(korean_texts, vocab_size=4000)
    text = " ".join(korean_texts[0].split())
    assert tokenizer.decode(tokenizer.encode(unicodedata.normalize("NFD", text))) == text
    assert tokenizer.special_ids.unk not in tokenizer.encode(text)
    continues = [tokenizer.pieces[index] for index in tokenizer.encode(text) if tokenizer.is_subword[index]]
    assert continues
    assert not any(piece.startswith("\u2581") for piece in continues)


@pytest.mark.parametrize("spelt", ["[MASK]", "a [MASK] b", "[UNK]", "[unused1]", "x[SEP]y"])
def test_texts_cannot_spell_special_pieces(spelt, english_texts):
    text = "Brackets [of] [MASK UNKs un used 1]. " + TEXT
    tokenizer = train_unigram([*english_texts[:5], text, spelt], vocab_size=300)
    assert not set(tokenizer.encode(spelt).tolist()) & set(tokenizer.special_ids)
    assert tokenizer.decode(tokenizer.encode(spelt)) == spelt


def test_marks_of_sentencepiece_in_a_text_are_read():
    """U+2581 is its space, and it skips words that have U+2585."""
    tokenizer = train_unigram([TEXT + " a\u2581b \u2585\u2585 x\u2585"], vocab_size=80)
    assert tokenizer.decode(tokenizer.encode("a\u2581b \u2585x")) == "a b \u2585x"
    assert tokenizer.special_ids.unk not in tokenizer.encode("\u2585")


def test_rare_characters_give_way_to_pieces():
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 60)))
    tokenizer = train_unigram([TEXT * 4000, rare], vocab_size=64)
    assert tokenizer.vocab_size <= 64
    assert tokenizer.encode(rare[:3]).tolist()[1:] == [tokenizer.special_ids.unk]


def test_pieces_are_read_and_compared_by_their_text(trained):
    (number,) = trained.encode("the")
    assert readable_pieces(trained, [number]) == ["\u2581the"]
    assert written_pieces(trained)[number] == (b"the", True)


@pytest.mark.parametrize(
    ("texts", "vocab_size", "error", "message"),
    [
        ([TEXT], 5, ConfigError, "vocab_size=5 must be above 5"),
        (["", " \n"], 100, DataError, "no words"),
        (["\u2585 \u2585\u2585"], 100, DataError, "no words"),
        (["".join(map(chr, range(0x4E00, 0x4E00 + 500)))], 100, DataError, "different characters"),
    ],
)
def test_what_cannot_be_trained_is_refused(texts, vocab_size, error, message):
    with pytest.raises(error, match=message):
        train_unigram(texts, vocab_size=vocab_size)


def test_text_without_a_space_for_thousands_of_characters_is_learned_from():
    chinese = "".join(chr(0x4E00 + (i * i + i // 40) % 120) + "\u3002" * (i % 9 == 8) for i in range(7000))
    tokenizer = train_unigram(["hello world again " * 5, chinese], vocab_size=600)
    assert not [character for character in set(chinese) if character not in tokenizer.pieces]
    assert train_unigram([chinese], vocab_size=300).encode(chinese[:50]).tolist().count(1) == 0


def test_characters_that_sentencepiece_skips_are_pieces_and_do_not_take_their_words_away():
    tokenizer = train_unigram([TEXT, "wh\0ale s\u2585ea " * 50], vocab_size=60)
    assert {"\0", "\u2585"} <= set(tokenizer.pieces)


def test_more_characters_than_pieces_are_refused_before_the_training(monkeypatch):
    monkeypatch.setattr(unigram_training, "_train", None)
    frequent = " ".join(chr(0x4E00 + i) for i in range(50)) + " "
    rare = " ".join(chr(0x5E00 + i) for i in range(100))
    with pytest.raises(DataError, match="Raise vocab_size to"):
        train_unigram([frequent * 2000, rare * 2], vocab_size=64)


def test_what_sentencepiece_refuses_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setitem(unigram_training._SETTINGS, "max_sentence_length", 3)
    with pytest.raises(DataError, match=r"SentencePiece cannot train on this text.*Give more text"):
        train_unigram([TEXT], vocab_size=60)
